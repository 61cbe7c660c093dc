//! Accumulating memory: over all steps, at a few steps, and over forward passes without a backward.

use crate::common::replay;
use memlab_trace::{AccumulationSpan, Category, Model};

const NAMES: &[&str] = &[
    r#"{"memlab":1,"version":"0.1.0","pid":1}"#,
    r#"{"software":"torch","version":"2.15.0","root":"/opt/torch/"}"#,
    r#"{"frame":1,"file":"/home/ada/train.py","line":10,"function":"evaluate"}"#,
    r#"{"frame":2,"file":"/opt/torch/nn/modules/module.py","line":5,"function":"Module._call_impl"}"#,
    r#"{"frame":3,"file":"/home/ada/train.py","line":20,"function":"Net.forward"}"#,
    r#"{"frame":4,"file":"/home/ada/train.py","line":30,"function":"train"}"#,
    r#"{"stack":1,"parent":0,"frame":1}"#,
    r#"{"stack":2,"parent":1,"frame":2}"#,
    r#"{"stack":3,"parent":2,"frame":3}"#,
    r#"{"stack":4,"parent":0,"frame":4}"#,
    r#"{"layer":1,"parent":0,"type":"Net","name":""}"#,
];

/// A training, built line by line.
struct Training {
    model: Model,
    next: u64,
}

impl Training {
    fn new() -> Self {
        Self { model: replay(NAMES), next: 0 }
    }

    fn line(&mut self, line: &str) {
        self.model.apply(memlab_trace::decode_line(line.as_bytes()).unwrap());
    }

    /// Allocates a block of this size from a stack, in a layer or outside (0), in an operation with these flags.
    fn block(&mut self, bytes: u64, stack: u32, layer: u32, flags: u32) -> u64 {
        self.next += 1;
        let address = self.next << 20;
        self.line(&format!(r#"["a",{},1,0,{address},{bytes},{stack},{layer},{flags}]"#, self.next));
        address
    }

    fn free(&mut self, address: u64) {
        self.line(&format!(r#"["f",{},1,0,{address}]"#, self.next));
    }

    /// Runs a forward from `stack` on a new batch. Returns the block that it keeps.
    fn forward(&mut self, stack: u32, flags: u32) -> u64 {
        let batch = self.block(512, 4, 0, 0);
        let kept = self.block(4096, stack, 1, flags);
        self.free(batch);
        kept
    }

    /// Runs a step with a backward.
    fn step(&mut self) {
        let kept = self.forward(4, 5);
        let gradient = self.block(512, 4, 1, 2 | 16);
        self.free(kept);
        self.free(gradient);
        self.line(&format!(r#"["step",{},1,0]"#, self.next));
    }
}

#[test]
fn an_evaluation_that_keeps_its_results_accumulates_until_it_returns() {
    // GIVEN steps, an evaluation that keeps the results of eight passes until it returns, and steps again
    let mut training = Training::new();
    (0..4).for_each(|_| training.step());
    let kept: Vec<u64> = (0..8).map(|_| training.forward(3, 5)).collect();
    kept.into_iter().for_each(|address| training.free(address));
    (0..4).for_each(|_| training.step());
    // THEN the accumulation at the peak is the memory of the earlier passes, with the stack, and with the fact that no
    // backward followed
    let piles = training.model.accumulations(0);
    assert_eq!(piles.len(), 1, "{piles:?}");
    assert_eq!((piles[0].span, piles[0].stacks.len()), (AccumulationSpan::Passes, 1));
    let piled = &piles[0].stacks[0];
    assert_eq!(
        (piled.stack, piled.bytes, piled.category, piled.makes_graph),
        (3, 7 * 4096, Category::Activation, true)
    );
    assert!(!training.model.reached_by_backward(0, 1) && training.model.reached_by_backward(0, 4));
    let callers: Vec<_> =
        training.model.callers(3).iter().map(|caller| (caller.stack, caller.line.line, caller.is_users)).collect();
    assert_eq!(callers, [(3, Some(20), true), (2, Some(5), false), (1, Some(10), true)]);
    // AND a keyframe contains the same
    let mut keyframe = Vec::new();
    training.model.write_keyframe(&mut keyframe).unwrap();
    let restored = replay(keyframe.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()));
    assert_eq!(restored.accumulations(0), piles);
}

#[test]
fn passes_before_one_backward_do_not_accumulate() {
    // GIVEN steps that run eight passes before one backward
    let mut training = Training::new();
    for _ in 0..4 {
        let kept: Vec<u64> = (0..8).map(|_| training.forward(3, 5)).collect();
        let gradient = training.block(512, 3, 1, 2 | 16);
        kept.into_iter().chain([gradient]).for_each(|address| training.free(address));
        training.line(r#"["step",9,1,0]"#);
    }
    assert_eq!(training.model.accumulations(0), []);
}

#[test]
fn gradients_on_the_line_of_passes_do_not_make_them_a_leak() {
    // GIVEN steps that run eight passes before one backward, whose gradients count for the same line and stay
    let mut training = Training::new();
    for _ in 0..4 {
        let kept: Vec<u64> = (0..8).map(|_| training.forward(3, 5)).collect();
        let gradients = training.block(16 * 4096, 3, 1, 2 | 16);
        kept.into_iter().for_each(|address| training.free(address));
        training.line(r#"["step",9,1,0]"#);
        training.free(gradients);
    }
    // THEN nothing accumulates, because backward used the results of the passes
    assert_eq!(training.model.accumulations(0), []);
}

#[test]
fn growth_at_a_few_steps_is_averaged_over_all_steps() {
    // GIVEN 47 steps, every tenth of which keeps another block
    let mut training = Training::new();
    for step in 0..47 {
        training.step();
        if step % 10 == 5 {
            training.block(46 << 20, 3, 1, 1);
        }
    }
    // THEN the rate is the growth over those steps divided by their number
    let growth = &training.model.growth(0)[0];
    assert_eq!((growth.from_step, growth.to_step, growth.to_bytes - growth.from_bytes), (2, 47, 5 * (46 << 20)));
    assert!((growth.bytes_per_step - (5.0 * f64::from(46 << 20) / 45.0)).abs() < 1e-3 && growth.is_steady);
    assert!(matches!(training.model.accumulations(0)[0].span, AccumulationSpan::Steps { from: 2, .. }));
}

#[test]
fn one_time_and_fluctuating_memory_is_not_growth() {
    // GIVEN a block that is allocated once and stays, and a line whose bytes rise and fall
    let mut training = Training::new();
    let mut held = 0;
    for step in 0..40_u64 {
        training.step();
        if step == 20 {
            training.block(1 << 20, 3, 1, 1);
        }
        if held != 0 {
            training.free(held);
        }
        held = training.block((1 + step * 7 % 11) << 16, 4, 0, 0);
    }
    assert!(training.model.growth(0).iter().all(|growth| !growth.is_steady), "{:?}", training.model.growth(0));
    assert_eq!(training.model.accumulations(0), []);
}
