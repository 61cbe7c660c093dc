//! Measures requests per second of the allocator model:
//! `cargo run --release --package memlab-predict --example allocator_bench`.

use std::time::Instant;

use memlab_predict::allocator::{Card, PoolKey, Request, Requests, Settings, replay};

const STEPS: u32 = 200;
const MIB: u64 = 1 << 20;

fn main() {
    for (name, settings) in [
        ("default", ""),
        ("expandable segments", "expandable_segments:True"),
        ("power-of-two rounding", "roundup_power2_divisions:8"),
    ] {
        let settings = Settings::parse(settings).expect("valid");
        let requests = training();
        let mut times: Vec<f64> = (0..9)
            .map(|_| {
                let start = Instant::now();
                assert!(replay(&requests, &settings, Card::UNLIMITED).fits());
                start.elapsed().as_secs_f64()
            })
            .collect();
        times.sort_by(f64::total_cmp);
        let (median, count) = (times[times.len() / 2], requests.requests.len() as f64);
        println!(
            "{name:22} {count} requests: {:.1} million a second, {:.2} ms for 10,000",
            count / median / 1e6,
            median / count * 1e7
        );
    }
}

/// Requests of a training of a transformer with 48 layers.
///
/// Parameters and optimizer state come first. Each step then allocates retained activations and temporaries, and
/// backward frees them in reverse order.
fn training() -> Requests {
    let mut made = Requests { places: vec![PoolKey::default()], ..Requests::default() };
    let mut next = 0;
    let mut allocate = |made: &mut Requests, size: u64| {
        made.requests.push(Request::Allocate { id: next, place: 0, size });
        next += 1;
        made.ids = next;
        next - 1
    };
    let activations = [8 * MIB, 24 * MIB, 8 * MIB, 32 * MIB, 32 * MIB, 8 * MIB, 16 * 1024, 16 * 1024];
    for _ in 0..48 {
        for weight in [12 * MIB, 4 * MIB, 16 * MIB, 16 * MIB, 4096, 4096, 12_288, 4096] {
            allocate(&mut made, weight);
            allocate(&mut made, 2 * weight);
        }
    }
    for _ in 0..STEPS {
        let mut held = Vec::new();
        for _ in 0..48 {
            for size in activations {
                let temporary = allocate(&mut made, size / 2 + 1000);
                held.push(allocate(&mut made, size));
                made.requests.push(Request::Free { id: temporary });
            }
        }
        while let Some(id) = held.pop() {
            let gradient = allocate(&mut made, 12 * MIB);
            made.requests.push(Request::Free { id });
            made.requests.push(Request::Free { id: gradient });
        }
    }
    made
}
