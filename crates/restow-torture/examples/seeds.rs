//! dev driver
#[global_allocator]
static A: mimalloc::MiMalloc = mimalloc::MiMalloc;
use restow_torture::{Plan, Telling, run, shrink};
fn main() {
    let args: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let tell = std::env::args().any(|a| a == "story");
    let keep: Option<Vec<usize>> = std::env::args().find_map(|a| a.strip_prefix("keep=").map(|k| k.split(',').filter_map(|n| n.parse().ok()).collect()));
    let (from, to) = (args[0], args.get(1).copied().unwrap_or(args[0] + 1));
    let began = std::time::Instant::now();
    let mut bad = 0;
    let mut total = restow_torture::Statistics::default();
    for seed in from..to {
        let mut plan = Plan::new(seed);
        if let Some(keep) = &keep { plan = plan.keeping(keep); }
        let t = std::time::Instant::now();
        let report = run(&plan, if tell { Telling::Story } else { Telling::Nothing });
        for line in &report.story { println!("{:9.3} {}", line.at.as_secs_f64(), line.words); }
        total += &report.statistics;
        if to - from < 50 { println!("seed {seed} {:?} digest {:x} {:?} {:?}", t.elapsed(), report.digest, report.statistics, plan.shape); }
        if let Some(v) = report.violation {
            bad += 1;
            println!("seed {seed}: {v}");
            if std::env::args().any(|a| a == "shrink") {
                let s = shrink(&plan, 60);
                for e in &s.events { println!("    {e}"); }
            }
        }
    }
    println!("{} seeds, {bad} bad, {:?}, {:.1}/s {total:?}", to - from, began.elapsed(), (to - from) as f64 / began.elapsed().as_secs_f64());
}
