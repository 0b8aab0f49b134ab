//! Metrics of the process (`process_*`), read from `/proc` at scrape time.

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use std::fmt::Error;
use std::fs;

/// Clock ticks in a second, as Linux counts the time of processes on every architecture that it runs on.
const TICKS: f64 = 100.0;

/// Memory, processor time, open files and the time of the start. Without `/proc` there are none.
#[derive(Debug)]
pub(super) struct ProcessCollector;

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let Some(figures) = Figures::read() else { return Ok(()) };
        counter(&mut encoder, "process_cpu_seconds", "Processor time spent, in seconds.", figures.cpu_seconds)?;
        gauge(&mut encoder, "process_resident_memory_bytes", "Resident memory, in bytes.", figures.resident)?;
        gauge(&mut encoder, "process_virtual_memory_bytes", "Virtual memory, in bytes.", figures.virtual_memory)?;
        gauge(&mut encoder, "process_start_time_seconds", "When it started, in seconds since 1970.", figures.start)?;
        gauge(&mut encoder, "process_open_fds", "Open file descriptors.", figures.open_files)
    }
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> Result<(), Error> {
    let counter = ConstCounter::new(value);
    counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
}

fn gauge(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: f64) -> Result<(), Error> {
    let gauge = ConstGauge::new(value);
    gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
}

struct Figures {
    cpu_seconds: f64,
    resident: f64,
    virtual_memory: f64,
    start: f64,
    open_files: f64,
}

impl Figures {
    fn read() -> Option<Self> {
        let stat = fs::read_to_string("/proc/self/stat").ok()?;
        // The program name is in parentheses and may contain anything; fields are counted after it.
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let boot = fs::read_to_string("/proc/stat").ok()?;
        let boot = boot.lines().find_map(|line| line.strip_prefix("btime "))?.parse::<f64>().ok()?;
        Some(Figures {
            cpu_seconds: (field(14)? + field(15)?) / TICKS,
            resident: resident()?,
            virtual_memory: field(23)?,
            start: boot + field(22)? / TICKS,
            open_files: fs::read_dir("/proc/self/fd").ok()?.count() as f64,
        })
    }
}

fn resident() -> Option<f64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.trim().strip_suffix(" kB")?.trim().parse::<f64>().ok()? * 1024.0)
}
