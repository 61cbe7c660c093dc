use memlab_trace::encode::{self, LineBuffer};
use std::time::Instant;
fn main() {
    let mut total = 0;
    let n = 20_000_000u64;
    let t = Instant::now();
    for i in 0..n {
        let mut b = LineBuffer::<192>::new();
        total += encode::alloc(&mut b, 1834022117 + i, 1, 0, 140213447884800 + i * 512, 4718592, 500 + (i as u32 & 1023), 77, 5).len();
    }
    println!("alloc {:.1} ns ({total})", t.elapsed().as_secs_f64() * 1e9 / n as f64);
    let mut b = LineBuffer::<192>::new();
    let t = Instant::now();
    for i in 0..n {
        total += encode::alloc(&mut b, 1834022117 + i, 1, 0, 140213447884800 + i * 512, 4718592, 500 + (i as u32 & 1023), 77, 5).len();
    }
    println!("alloc, buffer kept {:.1} ns ({total})", t.elapsed().as_secs_f64() * 1e9 / n as f64);
    let t = Instant::now();
    for i in 0..n {
        let mut b = LineBuffer::<192>::new();
        total += encode::free(&mut b, 1834022117 + i, 1, 0, 140213447884800 + i * 512).len();
    }
    println!("free {:.1} ns ({total})", t.elapsed().as_secs_f64() * 1e9 / n as f64);
}
