//! Synthetic jobs with figures that can be computed by hand.

mod made;

use memlab_job::{ComparedMemory, FigureKind, Job, MemoryAtOom, RankBytes};
use memlab_trace::{Category, Line, Scope};

use crate::made::{KEPT, MIB, MODEL, MS, Rank, SECOND, START, trained};

fn line_of(held: &ComparedMemory) -> Option<u32> {
    match held {
        ComparedMemory::Line(line) => line.as_deref().and_then(|Line { line, .. }| *line),
        _ => None,
    }
}

#[test]
fn a_rank_that_keeps_tensors_is_named_with_its_line_and_bytes() {
    // GIVEN eight ranks on two hosts, of which rank 3 keeps 5 MiB in each of six steps
    let folder = tempfile::tempdir().unwrap();
    let job = Job::read(&trained(folder.path(), 8, |rank| if rank == 3 { 5 * MIB } else { 0 }), None).unwrap();
    // WHEN they are compared THEN the median rank holds the model and one batch, and rank 3 also everything that it kept
    let peak = job.figure(FigureKind::Allocated).unwrap();
    assert_eq!((peak.least.value, peak.median, peak.most.value, peak.most.at), (96 * MIB, 96 * MIB, 126 * MIB, 3));
    assert_eq!(job.figure(FigureKind::GrowthPerStep).unwrap().most.value, 5 * MIB);
    // AND all differences name rank 3: the peak, the line and the layer, to the byte, and categories
    let expected = [RankBytes { at: 3, bytes: 126 * MIB }];
    assert_eq!((&job.differences[0].held, &*job.differences[0].ranks), (&ComparedMemory::Peak, &expected[..]));
    let is_category = |held: &ComparedMemory| matches!(held, ComparedMemory::Category(_));
    let (categories, others): (Vec<_>, Vec<_>) = job.differences.iter().partition(|it| is_category(&it.held));
    assert!(others.len() == 3 && others.iter().all(|it| it.bytes() == 30 * MIB && it.is_more()), "{others:?}");
    assert!(categories.iter().all(|it| it.ranks.iter().all(|rank| rank.at == 3)), "{categories:?}");
    let lines: Vec<u32> = job.differences.iter().filter_map(|difference| line_of(&difference.held)).collect();
    assert_eq!(lines, [30]);
    // AND a step takes 100 ms on both hosts, whose clocks agree
    assert_eq!(
        job.clocks.iter().map(|clock| (&*clock.host, clock.ahead_ns)).collect::<Vec<_>>(),
        [("gpu1", 0), ("gpu2", 0)]
    );
    assert!(job.first_oom.is_none() && job.stray_contexts.is_empty() && job.missing.count == 0);
}

#[test]
fn pipeline_stages_are_not_reported_as_different() {
    // GIVEN four stages of a pipeline, each larger than the previous one
    let folder = tempfile::tempdir().unwrap();
    let stage = |rank: u32| {
        let mut stage = Rank::begin(rank, 4);
        stage.allocate(u64::from(rank + 1) * 100 * MIB, MODEL, 0);
        stage.write(folder.path())
    };
    let job = Job::read(&(0..4).map(stage).collect::<Vec<_>>(), None).unwrap();
    // THEN the table shows the spread, and no rank is reported as different
    let peak = job.figure(FigureKind::Allocated).unwrap();
    assert_eq!([peak.least.value, peak.median, peak.most.value], [100 * MIB, 200 * MIB, 400 * MIB]);
    assert_eq!(job.differences, []);
}

#[test]
fn of_two_ranks_the_fuller_one_is_compared_with_the_other() {
    let folder = tempfile::tempdir().unwrap();
    let job = Job::read(&trained(folder.path(), 2, |rank| u64::from(rank) * 5 * MIB), None).unwrap();
    let peak = job.differences.iter().find(|difference| difference.held == ComparedMemory::Peak).unwrap();
    assert_eq!((peak.median_bytes, &*peak.ranks), (96 * MIB, &[RankBytes { at: 1, bytes: 126 * MIB }][..]));
}

#[test]
fn lower_and_higher_ranks_are_distinguished() {
    // GIVEN five ranks, of which one has no model and one keeps more
    let folder = tempfile::tempdir().unwrap();
    let mut traces = trained(folder.path(), 5, |rank| if rank == 1 { 8 * MIB } else { 0 });
    let mut idle = Rank::begin(4, 5);
    idle.step(0, 0);
    traces[4] = idle.write(folder.path());
    let job = Job::read(&traces, None).unwrap();
    let peaks: Vec<_> = job.differences.iter().filter(|difference| difference.held == ComparedMemory::Peak).collect();
    // THEN the peak has two differences, the larger first
    let told: Vec<_> = peaks.iter().map(|peak| (peak.is_more(), peak.ranks[0].at, peak.bytes())).collect();
    assert_eq!(told, [(true, 1, 48 * MIB), (false, 4, 32 * MIB)]);
    let model = job.differences.iter().find(|difference| line_of(&difference.held) == Some(10)).unwrap();
    assert_eq!((model.median_bytes, &*model.ranks), (32 * MIB, &[RankBytes { at: 4, bytes: 0 }][..]));
}

#[test]
fn the_first_rank_out_of_memory_is_found_and_what_the_others_held_then() {
    // GIVEN rank 2, which runs out of memory 250 ms after the start, rank 0, which does so later, rank 1 in its third step,
    // rank 3, which has ended, and rank 4, which begins too late
    let folder = tempfile::tempdir().unwrap();
    let mut ranks: Vec<Rank> = (0..4).map(|rank| Rank::begin(rank, 5)).collect();
    ranks.push(Rank::begin_at(4, 5, START + SECOND));
    ranks[0].train(0);
    ranks[0].out_of_memory(MIB, 32 * MIB);
    ranks[1].train(MIB);
    ranks[2].pass(250 * MS);
    ranks[2].out_of_memory(512 * MIB, 7000 * MIB);
    ranks[3].allocate(MIB, KEPT, 0);
    ranks[3].pass(MS);
    ranks[3].end();
    ranks[4].allocate(MIB, MODEL, 0);
    let traces: Vec<_> = ranks.iter().map(|rank| rank.write(folder.path())).collect();
    let job = Job::read(&traces, None).unwrap();
    // WHEN the first out-of-memory error is determined
    let first = job.first_oom.as_ref().unwrap();
    // THEN rank 2 was first
    assert_eq!((first.at, first.unix_ns, &*first.ranks), (2, START + 250 * MS, &[2, 0][..]));
    assert_eq!((first.oom.requested_bytes, first.oom.allocated_bytes), (512 * MIB, 7000 * MIB));
    // AND the others held the model, a batch and the memory kept by then, or nothing
    let held: Vec<_> = first.others.iter().map(|rank| (rank.at, allocated(&rank.held), steps(&rank.held))).collect();
    assert_eq!(held, [(0, Some(96 * MIB), Some(2)), (1, Some(99 * MIB), Some(2)), (3, None, None), (4, None, None)]);
    assert_eq!((&first.others[2].held, &first.others[3].held), (&MemoryAtOom::Ended, &MemoryAtOom::NotBegun));
    assert_eq!(first.allocated_by_others(), Some([96 * MIB, 96 * MIB, 99 * MIB]));
}

fn allocated(held: &MemoryAtOom) -> Option<u64> {
    match held {
        MemoryAtOom::Bytes { allocated_bytes, .. } => Some(*allocated_bytes),
        _ => None,
    }
}

fn steps(held: &MemoryAtOom) -> Option<u64> {
    match held {
        MemoryAtOom::Bytes { steps_ended, .. } => Some(*steps_ended),
        _ => None,
    }
}

#[test]
fn clocks_that_are_set_wrong_are_set_by_the_steps_that_ranks_ended_together() {
    // GIVEN a second host whose clock is a minute ahead, where rank 4 runs out of memory in its second step, and rank 0,
    // which does so in its fifth step
    let folder = tempfile::tempdir().unwrap();
    let late = 60 * SECOND;
    let mut ranks = [Rank::begin(0, 2), Rank::begin_at(4, 2, START + late)];
    for (index, rank) in (0..6).flat_map(|index| [(index, 0), (index, 1)]) {
        ranks[rank].step(index, 0);
        if (index, rank) == (4, 0) || (index, rank) == (1, 1) {
            ranks[rank].out_of_memory(MIB, MIB);
        }
    }
    let traces = ranks.each_ref().map(|rank| rank.write(folder.path()));
    let job = Job::read(&traces, None).unwrap();
    // WHEN they are compared THEN the clock's offset is found, and rank 4 was the first, by the time of the first host
    assert_eq!(job.clocks[1].ahead_ns, late as i64);
    let first = job.first_oom.as_ref().unwrap();
    assert_eq!((first.at, first.unix_ns), (1, START + 200 * MS));
    assert_eq!(steps(&first.others[0].held), Some(2));
    assert_eq!(job.span_unix_ns(), (START, START + 600 * MS));
    // AND a difference of less than a step is not a clock offset
    ranks[1] = Rank::begin_at(4, 2, START + 90 * MS);
    ranks[1].train(0);
    ranks[1].write(folder.path());
    assert_eq!(Job::read(&traces, None).unwrap().clocks[1].ahead_ns, 0);
}

#[test]
fn contexts_on_devices_of_others_are_found_by_the_driver_and_by_the_rank_itself() {
    // GIVEN four ranks of two hosts: the driver lists rank 1 and an unknown process to rank 0, rank 2 allocated a little on
    // device 3, and rank 4 on the other host has the same pid as a rank of the first
    let folder = tempfile::tempdir().unwrap();
    let mut ranks = [0, 1, 2, 3, 4].map(|rank| Rank::begin(rank, 8));
    ranks[0].other_process(101, 300 * MIB);
    ranks[0].other_process(4242, 9 * MIB);
    ranks[4].other_process(102, 500 * MIB);
    for rank in &mut ranks {
        rank.train(0);
    }
    ranks[2].define_device(3);
    ranks[2].allocate_on(3, 512, KEPT, 0);
    ranks[2].line(&format!(r#"["used",{SECOND},3,{},{},{}]"#, 600 * MIB, 8 << 30, 256 * MIB));
    let traces = ranks.each_ref().map(|rank| rank.write(folder.path()));
    let job = Job::read(&traces, None).unwrap();
    // THEN two contexts are found, on the devices of ranks 0 and 3, one of them with its line
    let told: Vec<_> =
        job.stray_contexts.iter().map(|stray| (stray.at, stray.owner, stray.device, stray.bytes)).collect();
    assert_eq!(told, [(1, Some(0), 0, 300 * MIB), (2, Some(3), 3, 256 * MIB)]);
    let line = |at: usize| job.stray_contexts[at].line.as_ref().and_then(|line| line.line);
    assert_eq!([line(0), line(1)], [None, Some(30)]);
    // AND the three ranks without a trace are missing
    assert_eq!((job.missing.count, &*job.missing.first), (3, &[5, 6, 7][..]));
}

#[test]
fn contexts_on_devices_of_others_are_sorted_by_size() {
    // GIVEN four ranks with contexts of others on their devices: later ranks have larger ones, and two are equal
    let folder = tempfile::tempdir().unwrap();
    let mut ranks = [0, 1, 2, 3].map(|rank| Rank::begin(rank, 4));
    for (owner, stray, size) in [(3, 0, 100), (0, 1, 200), (1, 2, 400), (0, 2, 200), (2, 3, 300)] {
        ranks[owner].other_process(100 + stray, size * MIB);
    }
    for rank in &mut ranks {
        rank.train(0);
    }
    let traces = ranks.each_ref().map(|rank| rank.write(folder.path()));
    let job = Job::read(&traces, None).unwrap();
    // THEN the largest is first, and of equal ones the first rank's
    let told: Vec<_> = job.stray_contexts.iter().map(|stray| (stray.bytes / MIB, stray.at, stray.device)).collect();
    assert_eq!(told, [(400, 2, 1), (300, 3, 2), (200, 1, 0), (200, 2, 0), (100, 0, 3)]);
}

#[test]
fn a_trace_that_cannot_be_read_does_not_hide_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let mut traces = trained(folder.path(), 3, |_| 0);
    std::fs::write(&traces[1], "no trace\n").unwrap();
    let job = Job::read(&traces, None).unwrap();
    assert_eq!(job.ranks.iter().map(|rank| rank.rank()).collect::<Vec<_>>(), [0, 2]);
    assert!(job.unreadable[0].path == traces[1] && job.missing.first == [1]);
    // AND if no trace can be read, the result is an error
    traces.drain(2..);
    traces.remove(0);
    assert!(Job::read(&traces, None).is_err());
}

#[test]
fn lines_layers_and_categories_of_a_rank_sum_to_its_peak() {
    // GIVEN ranks with a model, a batch and kept tensors
    let folder = tempfile::tempdir().unwrap();
    let job = Job::read(&trained(folder.path(), 2, |_| MIB), None).unwrap();
    for rank in &job.ranks {
        let device = rank.own_device().unwrap();
        let sum = |rows: &mut dyn Iterator<Item = u64>| rows.sum::<u64>();
        // THEN lines and layers sum to the peak, and categories to the use of the device at that time
        for scope in [Scope::Users, Scope::Libraries] {
            assert_eq!(sum(&mut device.lines[scope].iter().map(|row| row.1)), 102 * MIB);
        }
        assert_eq!(sum(&mut device.layers.iter().map(|row| row.1)), 102 * MIB);
        assert_eq!(sum(&mut device.categories.into_iter()), device.view.used_bytes_at_peak);
        assert_eq!(device.categories[Category::Context as usize], 256 * MIB);
        // AND the strip contains the peak
        assert_eq!(device.strip.iter().max(), Some(&(102 * MIB)));
        assert_eq!(rank.step_ends.last(), Some(&(5, START + 600 * MS)));
    }
}
