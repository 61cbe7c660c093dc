use memlab_allocator::*;
use memlab_plan::*;
use std::time::Instant;
fn main() {
    let a: Vec<String> = std::env::args().skip(1).collect();
    let t = Instant::now();
    let r = |p: &str| Recording::read(std::path::Path::new(p)).unwrap();
    let (r1, r2) = (r(&a[1]), r(&a[3]));
    println!(
        "read {:?} allocs {} {} steps {:?} {:?} requested {}",
        t.elapsed(),
        r1.allocations.len(),
        r2.allocations.len(),
        r1.steps,
        r2.steps,
        r1.has_requested_sizes
    );

    let f = Family::of_two((a[0].parse().unwrap(), r1), (a[2].parse().unwrap(), r2)).unwrap();
    println!("family {:?} same {} unmatched {} {}", t.elapsed(), f.is_same_order, f.unmatched, f.unmatched_bytes);
    for b in &a[4..] {
        let b: u64 = b.parse().unwrap();
        let t = Instant::now();
        let s = Search::new(&f, Settings::default(), 0);
        let n = s.needs(Some(b));
        println!(
            "batch {b} allocated {} reserved {} least {} {:?} {:?}",
            n.planned.counters.allocated.peak,
            n.planned.counters.reserved.peak,
            n.least,
            n.planned.steadiness,
            t.elapsed()
        );
    }
    let t = Instant::now();
    let s = Search::new(&f, Settings::default(), 1 << 30);
    println!("largest 24GiB {} {:?}", s.largest_batch(24 << 30), t.elapsed());
    let b = a[4].parse().ok();
    let sizes = f.sizes(b);
    let p = f.run(&sizes, &Settings::default(), Card::ENDLESS);
    let v = f.peak(&p, &sizes, &Settings::default());
    println!("{} {} {:?} {:?}", v.allocated, v.step, v.phase, v.line);
    for c in &v.categories {
        println!("{:?}", c);
    }
    for l in v.lines.iter().take(4) {
        println!("{:?}", l);
    }
    for l in v.layers.iter().take(4) {
        println!("{:?}", l);
    }
}
#[allow(dead_code)]
pub fn diff(r: &Recording) {
    let s = &r.steps;
    let w = |a: usize, b: usize| -> Vec<String> {
        let ev = &r.events[a..b];
        let first = ev.iter().find_map(|e| if let Event::Allocate(i) = e { Some(*i) } else { None }).unwrap() as i64;
        ev.iter()
            .map(|e| match *e {
                Event::Allocate(i) => format!("A {} {}", i as i64 - first, r.allocations[i as usize].size),
                Event::Free(i) => format!("F {}", i as i64 - first),
                o => format!("{o:?}"),
            })
            .collect()
    };
    let n = s.len();
    let (a, b) = (w(s[n - 3], s[n - 2]), w(s[n - 2], s[n - 1]));
    for (i, (x, y)) in a.iter().zip(&b).enumerate() {
        if x != y {
            println!("{i}: {x} | {y}");
        }
    }
}
