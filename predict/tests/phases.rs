//! Plans of programs that evaluate and save after their training steps.

use memlab_predict::allocator::{Card, Settings};
use memlab_predict::plan::{Family, Recording, Stage, StagePeak};

use crate::script::{MIB, Script};

/// Weights of 30 MiB.
///
/// Steps with 12 MiB per sample, then an evaluation with 50 MiB per sample, a copy of the weights, and a step without
/// weights.
fn training(batch: u64) -> Recording {
    let mut program = Script::new();
    let weights = program.allocate(30 * MIB);
    let step = |program: &mut Script| {
        let activations = program.allocate(12 * MIB * batch);
        program.free(activations);
    };
    for _ in 0..5 {
        step(&mut program);
        program.end_step();
    }
    begin(&mut program, Stage::Training);
    begin(&mut program, Stage::Evaluation);
    let outputs = program.allocate(50 * MIB * batch);
    program.free(outputs);
    begin(&mut program, Stage::Saving);
    let copy = program.allocate(30 * MIB);
    program.free(copy);
    begin(&mut program, Stage::Rest);
    program.free(weights);
    begin(&mut program, Stage::Training);
    step(&mut program);
    program.recording
}

fn begin(program: &mut Script, stage: Stage) {
    program.recording.stages.begins.push((program.recording.events.len(), stage));
}

#[test]
fn each_phase_has_its_peak_at_any_batch() {
    // GIVEN recordings at batch 2 and 4
    let family = Family::of_two((2, training(2)), (4, training(4))).unwrap();
    assert!(family.is_same_order && family.unmatched == 0);
    // WHEN batch 10 is planned
    let sizes = family.sizes(Some(10));
    let planned = family.run(&sizes, &Settings::default(), Card::UNLIMITED);
    // THEN training, evaluation and saving need their memory beside the weights, and reserve the rest of earlier phases
    let reserved = (30 + 120 + 500) * MIB;
    let expected = [
        Some(StagePeak { allocated: (30 + 120) * MIB, reserved }),
        Some(StagePeak { allocated: (30 + 500) * MIB, reserved }),
        Some(StagePeak { allocated: (30 + 30) * MIB, reserved }),
        Some(StagePeak { allocated: 30 * MIB, reserved }),
    ];
    assert_eq!(planned.stages, expected);
    // AND the peak is that of the evaluation
    let peak = family.peak(&planned, &sizes, &Settings::default());
    assert_eq!((peak.stage, peak.allocated), (Stage::Evaluation, 530 * MIB));
}
