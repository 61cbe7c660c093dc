use memlab_loader::plan::*;
use std::time::Instant;
struct R(u64);
impl R {
    fn b(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}
fn problem(bytes: Vec<u64>, compute: Vec<u64>) -> Problem {
    let n = bytes.len();
    Problem {
        points: compute.iter().enumerate().map(|(i, &c)| Point { units: vec![i], compute_ns: c }).collect(),
        unit_bytes: bytes,
        together: vec![],
        resident: vec![false; n],
        bus: Bus { bytes_per_second: 512e9 / 1000.0, copy_overhead_ns: 0 },
    }
}
// 1 block of 512 bytes = 1000 ns
fn brute(p: &Problem, limit: u64) -> u64 {
    let n = p.unit_bytes.len();
    let placer = Placer::new(p);
    let mut best = u64::MAX;
    let mut program = Program::default();
    let mut places = vec![];
    for mask in 0..1u32 << n {
        let streamed: Vec<bool> = (0..n).map(|i| mask >> i & 1 == 1).collect();
        let res: u64 = (0..n).filter(|&i| !streamed[i]).map(|i| p.unit_bytes[i]).sum();
        if res > limit {
            continue;
        }
        let s: Vec<u64> = (0..n).filter(|&i| streamed[i]).map(|i| p.unit_bytes[i]).collect();
        let mut rings = vec![0];
        for i in 0..s.len() {
            let mut sum = 0;
            for k in 0..s.len() {
                sum += s[(i + k) % s.len()];
                rings.push(sum);
            }
        }
        rings.sort();
        rings.dedup();
        for ring in rings {
            if res + ring > limit {
                break;
            }
            for pattern in [Pattern::Sequential] {
                if let Some(_) = placer.place(Shape { pattern, ring, seam: 0 }, &streamed, &mut places) {
                    program.compile(&p.unit_bytes, &p.points, &places, &p.bus);
                    best = best.min(program.run().period_ns);
                }
            }
        }
    }
    best
}
fn main() {
    let arg: Vec<String> = std::env::args().collect();
    match arg[1].as_str() {
        "table" => {
            for (c, res) in [(250, 24), (500, 16), (750, 8), (1000, 0)] {
                let p = problem(vec![512; 32], vec![c; 32]);
                for extra in [0, 1, 2, 3] {
                    let t = Instant::now();
                    let r = plan(&p, Wanted::Budget((res + extra) * 512), u64::MAX).unwrap();
                    println!(
                        "C {c} memory {}: {} ring {} residents {} ({:?})",
                        res + extra,
                        r.predicted_ns,
                        r.ring_bytes / 512,
                        r.resident_bytes / 512,
                        t.elapsed()
                    );
                }
            }
        }
        "brute" => {
            let n: usize = arg[2].parse().unwrap();
            let mode: u64 = arg[3].parse().unwrap();
            let mut r = R(88172645463325252);
            let mut worst = vec![];
            let mut tt = 0.;
            let cases = arg[4].parse().unwrap();
            for _ in 0..cases {
                let bytes: Vec<u64> = (0..n).map(|_| 512 * (1 + if mode & 1 == 0 { 7 } else { r.b(8) })).collect();
                let ratio = 1 + r.b(20);
                let compute: Vec<u64> = bytes
                    .iter()
                    .map(|&b| {
                        b / 512 * 100 * ratio * if mode & 2 == 0 { 1 } else { r.b(4) }
                            / if mode & 2 == 0 { 1 } else { 2 }
                    })
                    .collect();
                let p = problem(bytes, compute);
                let total: u64 = p.unit_bytes.iter().sum();
                let max = *p.unit_bytes.iter().max().unwrap();
                let limit = max + r.b(total - max);
                let b = brute(&p, limit);
                let t = Instant::now();
                let m = if arg.len() > 5 {
                    let mut s = Search::heuristic(&p);
                    let c = s.fastest(limit).unwrap();
                    s.plan_of(&c)
                } else {
                    plan(&p, Wanted::Budget(limit), u64::MAX).unwrap()
                };
                tt += t.elapsed().as_secs_f64();
                worst.push((
                    m.predicted_ns as f64 / b as f64,
                    p.unit_bytes.iter().map(|b| b / 512).collect::<Vec<_>>(),
                    p.points.iter().map(|p| p.compute_ns).collect::<Vec<_>>(),
                    limit as f64 / 512.,
                ));
            }
            worst.sort_by(|a, b| b.0.total_cmp(&a.0));
            let above = worst.iter().filter(|w| w.0 > 1.02).count();
            let mean = worst.iter().map(|w| w.0).sum::<f64>() / cases as f64;
            println!(
                "n {n} mode {mode}: above 1.02: {above}/{cases}, mean {mean:.4}, p90 {:.4} p99 {:.4} max {:.4}, {:.1} ms each",
                worst[cases / 10].0,
                worst[cases / 100].0,
                worst[0].0,
                tt / cases as f64 * 1e3
            );
            for w in worst.iter().take(2) {
                println!("   {w:?}");
            }
        }
        _ => {
            for n in [32usize, 100, 300, 1000] {
                for mode in 0..3 {
                    let mut r = R(88172645463325252);
                    let bytes: Vec<u64> = (0..n)
                        .map(|i| 512 * [8000, 1 + r.b(16000), [8000, 2000, 2000, 8000, 21000, 21000, 1][i % 7]][mode])
                        .collect();
                    for ratio in [25u64, 50, 100] {
                        let compute = bytes.iter().map(|&b| b / 512 * 10 * ratio).collect();
                        let p = problem(bytes.clone(), compute);
                        let total: u64 = p.unit_bytes.iter().sum();
                        for f in [10, 25, 50, 75] {
                            let limit = total / 100 * f;
                            let t = Instant::now();
                            let Ok(m) = plan(&p, Wanted::Budget(limit), u64::MAX) else { continue };
                            let e = t.elapsed();
                            println!(
                                "n {n} mode {mode} C/copy {ratio} budget {f}%: pred/bound {:.4} {e:?}",
                                m.predicted_ns as f64
                                    / (m.compute_ns as f64).max((total - limit) as f64 / 512. * 1000.)
                            );
                        }
                        let t = Instant::now();
                        let m = plan(&p, Wanted::Hide, total).unwrap();
                        println!(
                            "   hide: bytes {:.3} of {:.3}; time {:.3} {:?}",
                            (m.ring_bytes + m.resident_bytes) as f64 / total as f64,
                            1. - ratio as f64 / 100.,
                            m.predicted_ns as f64 / m.compute_ns as f64,
                            t.elapsed()
                        );
                    }
                }
            }
        }
    }
}
