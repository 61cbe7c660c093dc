//! The cards of this machine, as NVIDIA's driver reports them (NVML): load, temperature, power and processes.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use nvml_wrapper::Nvml;
use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use rustix::system::uname;
use serde::Serialize;

/// Shortest interval between two questions to the driver.
const INTERVAL: Duration = Duration::from_secs(1);

/// State of a card. A figure that the driver does not report is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CardStatus {
    /// Index in the driver's order, as `nvidia-smi` shows it.
    pub index: u32,
    pub name: String,
    pub bus_id: String,
    /// Share of the last sample period in which a kernel ran.
    pub busy_percent: Option<u32>,
    pub celsius: Option<u32>,
    pub watts: Option<u32>,
    pub power_limit_watts: Option<u32>,
    pub used_bytes: Option<u64>,
    pub total_bytes: Option<u64>,
    /// Processes with memory on the card.
    pub processes: Vec<CardProcess>,
}

/// A process on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CardProcess {
    pub pid: u32,
    pub bytes: Option<u64>,
}

impl CardStatus {
    /// Load, temperature and power, as far as they are known: `GPU 97 %`, `64 °C`, `612 of 700 W`.
    pub fn facts(&self) -> Vec<String> {
        let busy = self.busy_percent.map(|percent| format!("GPU {percent} %"));
        let heat = self.celsius.map(|celsius| format!("{celsius} °C"));
        [busy, heat, self.power()].into_iter().flatten().collect()
    }

    /// The power that the card draws, of its limit: `612 of 700 W`; `None`: not known.
    pub fn power(&self) -> Option<String> {
        let watts = self.watts?;
        Some(match self.power_limit_watts {
            Some(limit) => format!("{watts} of {limit} W"),
            None => format!("{watts} W"),
        })
    }
}

/// The cards of this machine, at most a second old; empty without a driver.
pub fn cards() -> Arc<Vec<CardStatus>> {
    static LATEST: Mutex<Option<(Instant, Arc<Vec<CardStatus>>)>> = Mutex::new(None);
    let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    match &*latest {
        Some((asked, cards)) if asked.elapsed() < INTERVAL => cards.clone(),
        _ => {
            let cards = Arc::new(ask());
            *latest = Some((Instant::now(), cards.clone()));
            cards
        }
    }
}

/// The card of a process on `host`, by its PCI bus id.
pub fn card_of<'c>(cards: &'c [CardStatus], bus_id: Option<&str>, host: &str) -> Option<&'c CardStatus> {
    let wanted = address(bus_id?)?;
    let is_here = host == uname().nodename().to_string_lossy();
    cards.iter().find(|card| is_here && address(&card.bus_id).as_ref() == Some(&wanted))
}

/// Parts of a PCI bus id, which CUDA writes with a domain of four digits and NVML of eight.
fn address(bus_id: &str) -> Option<(u32, String)> {
    let (domain, rest) = bus_id.split_once(':')?;
    Some((u32::from_str_radix(domain, 16).ok()?, rest.to_ascii_uppercase()))
}

fn ask() -> Vec<CardStatus> {
    static NVML: OnceLock<Option<Nvml>> = OnceLock::new();
    let open = || Nvml::builder().lib_path("libnvidia-ml.so.1".as_ref()).init().ok();
    let Some(nvml) = NVML.get_or_init(open) else { return Vec::new() };
    let count = nvml.device_count().unwrap_or(0);
    (0..count).filter_map(|index| status(nvml, index).ok()).collect()
}

fn status(nvml: &Nvml, index: u32) -> Result<CardStatus, NvmlError> {
    const MILLIWATTS: u32 = 1000;
    let device = nvml.device_by_index(index)?;
    let memory = device.memory_info().ok();
    let bytes = |used: UsedGpuMemory| match used {
        UsedGpuMemory::Used(bytes) => Some(bytes),
        UsedGpuMemory::Unavailable => None,
    };
    let processes = device.running_compute_processes().unwrap_or_default();
    Ok(CardStatus {
        index,
        name: device.name().unwrap_or_default(),
        bus_id: device.pci_info()?.bus_id,
        busy_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
        celsius: device.temperature(TemperatureSensor::Gpu).ok(),
        watts: device.power_usage().ok().map(|power| power / MILLIWATTS),
        power_limit_watts: device.enforced_power_limit().ok().map(|power| power / MILLIWATTS),
        used_bytes: memory.as_ref().map(|memory| memory.used),
        total_bytes: memory.as_ref().map(|memory| memory.total),
        processes: processes
            .into_iter()
            .map(|process| CardProcess { pid: process.pid, bytes: bytes(process.used_gpu_memory) })
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_found_by_its_bus_id_on_its_host() {
        // GIVEN a card as NVML names it
        let cards = [CardStatus { bus_id: "00000000:1B:00.0".to_owned(), ..CardStatus::default() }];
        let host = uname().nodename().to_string_lossy().into_owned();
        // THEN a process of this host finds it by the name of CUDA, and others do not
        assert!(card_of(&cards, Some("0000:1b:00.0"), &host).is_some());
        assert!(card_of(&cards, Some("0001:1b:00.0"), &host).is_none());
        assert!(card_of(&cards, Some("0000:1b:00.0"), "elsewhere").is_none());
        assert!(card_of(&cards, None, &host).is_none() && card_of(&cards, Some("x"), &host).is_none());
    }

    #[test]
    fn only_known_figures_are_named() {
        let card = CardStatus { busy_percent: Some(97), watts: Some(612), ..CardStatus::default() };
        assert_eq!(card.facts(), ["GPU 97 %", "612 W"]);
        let card = CardStatus { celsius: Some(64), power_limit_watts: Some(700), ..card };
        assert_eq!(card.facts(), ["GPU 97 %", "64 °C", "612 of 700 W"]);
    }
}
