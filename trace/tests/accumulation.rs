//! Accumulating memory: over all steps, at a few steps, and over forward passes without a backward.

use crate::common::replay;
use memlab_trace::{AccumulationSpan, AccumulationView, Category, Model};

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

/// Returns the model that a keyframe of `model` restores.
fn restored(model: &Model) -> Model {
    let mut keyframe = Vec::new();
    model.write_keyframe(&mut keyframe).unwrap();
    replay(keyframe.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()))
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
    assert_eq!(restored(&training.model).accumulations(0), piles);
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

#[test]
fn memory_grows_over_iterations_in_a_program_without_an_optimizer() {
    // GIVEN twelve forwards, each with a backward, that keep one block each, and no optimizer step
    let mut training = Training::new();
    for _ in 0..12 {
        training.forward(3, 5);
        let gradient = training.block(512, 3, 1, 2 | 16);
        training.free(gradient);
    }
    // THEN the blocks accumulated over the iterations after warm-up, with the number of iterations
    let piles = training.model.accumulations(0);
    assert_eq!(piles.len(), 1, "{piles:?}");
    assert_eq!(piles[0].span, AccumulationSpan::Iterations { from: 2, to: 12 });
    assert_eq!((piles[0].stacks[0].stack, piles[0].stacks[0].bytes), (3, 10 * 4096));
    // WHEN an optimizer makes steps, THEN growth is counted over steps from then on
    (0..4).for_each(|_| training.step());
    assert!(
        !training.model.accumulations(0).iter().any(|pile| matches!(pile.span, AccumulationSpan::Iterations { .. }))
    );
}

#[test]
fn iterations_after_the_last_step_are_compared() {
    // GIVEN steps of twelve micro-batches each, which are freed at the step
    let mut training = Training::new();
    let micro_batch = |training: &mut Training| {
        let kept = training.forward(3, 5);
        let gradient = training.block(512, 3, 1, 2 | 16);
        training.free(gradient);
        kept
    };
    for _ in 0..4 {
        let kept: Vec<u64> = (0..12).map(|_| micro_batch(&mut training)).collect();
        kept.into_iter().for_each(|address| training.free(address));
        training.step();
    }
    let after_steps = |model: &Model| {
        let piles = model.accumulations(0).into_iter();
        let mut piles = piles.filter(|pile| matches!(pile.span, AccumulationSpan::AfterSteps { .. }));
        piles.next().map(|pile| (pile.span, pile.stacks[0].stack, pile.stacks[0].bytes))
    };
    // THEN they are no growth; WHEN an evaluation runs forty such iterations that keep their memory, THEN these are
    assert_eq!(after_steps(&training.model), None);
    for _ in 0..40 {
        micro_batch(&mut training);
    }
    let found = Some((AccumulationSpan::AfterSteps { from: 26, to: 40 }, 3, 14 * 4096));
    assert_eq!(after_steps(&training.model), found);
    assert_eq!(after_steps(&restored(&training.model)), found);
}

#[test]
fn parameters_that_an_inference_keeps_are_growth() {
    // GIVEN forwards without backward, before each second of which parameters are added
    let mut training = Training::new();
    for pass in 0..20 {
        if pass % 2 == 0 {
            let address = training.block(1 << 20, 4, 0, 0);
            training.line(&format!(r#"["tag",{},0,{address},"parameter",1048576,1,"adapter.{pass}"]"#, training.next));
        }
        let kept = training.forward(3, 1);
        training.free(kept);
    }
    // THEN they are growth of the category of parameters
    let piles = training.model.accumulations(0);
    assert_eq!(piles[0].span, AccumulationSpan::Iterations { from: 2, to: 20 });
    let grown: Vec<_> = piles[0].stacks.iter().map(|stack| (stack.stack, stack.bytes, stack.category)).collect();
    assert_eq!(grown, [(4, 9 << 20, Category::Parameter)], "{piles:?}");
}

#[test]
fn memory_that_grows_within_each_epoch_is_found_if_it_keeps_a_graph() {
    for is_found in [true, false] {
        // GIVEN three epochs of 20 steps that collect one result per step, with or without its graph, and free them at the end
        // (a graph holds the tensors of several operations)
        let mut training = Training::new();
        for _ in 0..3 {
            let mut kept = Vec::new();
            for _ in 0..20 {
                training.step();
                kept.push(training.forward(3, 5));
                if is_found {
                    kept.extend([1, 2, 4].map(|stack| training.block(4096, stack, 1, 5)));
                }
            }
            kept.into_iter().for_each(|address| training.free(address));
        }
        // THEN only results with a graph are found, over one epoch, with the number of epochs that ended
        let piles = training.model.accumulations(0);
        let released = piles.iter().find(|pile| matches!(pile.span, AccumulationSpan::Released { .. }));
        assert_eq!(released.is_some(), is_found, "{piles:?}");
        if let Some(AccumulationView { span: AccumulationSpan::Released { from, to, times }, stacks }) = released {
            assert!(to - from >= 17 && *times == 2, "{from} {to} {times}");
            assert!(stacks.len() == 4 && stacks[0].bytes >= 17 * 4096, "{stacks:?}");
        }
        // AND a keyframe contains the same
        assert_eq!(restored(&training.model).accumulations(0), piles);
    }
}

#[test]
fn a_full_cache_does_not_grow() {
    // GIVEN a cache that fills in the first 12 of 240 steps
    let mut training = Training::new();
    for step in 0..240 {
        training.step();
        if step < 12 {
            training.block(1 << 20, 3, 1, 1);
        }
    }
    // THEN nothing grows
    assert_eq!(training.model.accumulations(0), []);
    assert!(training.model.growth(0).iter().all(|growth| !growth.is_steady));
}

#[test]
fn gradients_and_state_of_unfrozen_layers_are_expected() {
    for is_named_twice in [false, true] {
        // GIVEN parameters that get a gradient and optimizer state one by one, every fifth step
        let mut training = Training::new();
        for step in 0..40 {
            training.step();
            if step % 5 == 0 {
                let number = if is_named_twice { 0 } else { step / 5 };
                for (category, flags) in [("gradient", 2 | 16), ("optimizer_state", 3)] {
                    let address = training.block(1 << 20, 3, 1, flags);
                    let name = if category == "gradient" { format!("{number}") } else { format!("{number}:exp_avg") };
                    training.line(&format!(
                        r#"["tag",{},0,{address},"{category}",1048576,1,"layers.{name}"]"#,
                        training.next
                    ));
                }
            }
        }
        // THEN they are no leak; state that exists several times for one parameter is one
        let piles = training.model.accumulations(0);
        assert_eq!(!piles.is_empty(), is_named_twice, "{piles:?}");
    }
}

#[test]
fn lines_that_grow_together_have_one_curve() {
    // GIVEN two lines that keep a block at each step, and one that does at each tenth
    let mut training = Training::new();
    for step in 0..60 {
        training.step();
        training.block(1 << 20, 3, 1, 1);
        training.block(1 << 18, 1, 0, 0);
        if step % 20 == 19 {
            training.block(1 << 22, 4, 0, 0);
        }
    }
    // THEN the first two have the same curve, and the third another
    let piles = training.model.accumulations(0);
    let curve = |stack: u32| piles[0].stacks.iter().find(|piled| piled.stack == stack).map(|piled| piled.curve);
    assert_eq!(curve(3), Some(0), "{piles:?}");
    assert_eq!(curve(1), Some(0), "{piles:?}");
    assert_ne!(curve(4), Some(0), "{piles:?}");
}

#[test]
fn a_window_that_cannot_be_is_no_growth() {
    // GIVEN a keyframe with windows that end before they begin, and whose fewest bytes exceed the most
    let window = r#"{"stride":0,"snapshots":[{"ended":9,"lines":[]}],"before":{"ended":9,"cells":[]},"after":{"ended":2,"cells":[]},"least":18446744073709551615,"most":0}"#;
    let line =
        format!(r#"{{"keyframe":"windows","device":0,"windows":{{"now":{window},"largest":{window},"times":1}}}}"#);
    let mut training = Training::new();
    training.line(&line);
    // WHEN a training goes on, THEN nothing panics, and nothing grows
    (0..4).for_each(|_| training.step());
    assert_eq!(training.model.accumulations(0), []);
}
