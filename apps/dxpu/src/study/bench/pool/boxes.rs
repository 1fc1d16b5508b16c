//! Simulated boxes: they report, and are clean as soon as they are told to be.

use anyhow::anyhow;
use pool::{Answer, Command};
use pool_api::{BoxKind, BoxReport, GpuId, GpuReport, Health, Model, Name, Want};
use pool_manager::Local;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Mutex, PoisonError};

/// As most machines are sold.
pub(super) const SLOTS: u32 = 8;

/// All boxes of a pool.
pub(super) struct Boxes {
    reports: Vec<Mutex<BoxReport>>,
    names: Vec<Name>,
    /// Whether a box has something to do and its agent has not yet begun.
    due: Vec<AtomicBool>,
}

impl Boxes {
    /// One box in four has NVLink, and there are three models, as in a pool that has grown.
    pub(super) fn make(gpus: u32) -> anyhow::Result<Self> {
        let models = [Model::new("H200")?, Model::new("H100")?, Model::new("L40S")?];
        let count = gpus.div_ceil(SLOTS);
        let (mut reports, mut names) = (Vec::new(), Vec::new());
        for index in 0..count {
            let model = &models[index as usize % models.len()];
            let kind = if index % 4 == 0 { BoxKind::Nvlink } else { BoxKind::Pcie };
            let slots = SLOTS.min(gpus - index * SLOTS);
            let gpu = |slot: u32| GpuReport {
                slot: slot as u8,
                model: model.clone(),
                memory_bytes: 80 << 30,
                uuid: format!("GPU-{index:06}-{slot}"),
                nvlink_group: (kind == BoxKind::Nvlink).then_some(0),
                only_pcie: false,
                guest: None,
                part: None,
                health: Health::OK,
                bound_epoch: 0,
                cleaned_epoch: 0,
                ready: true,
                unready: None,
                endpoints: vec![format!("tls:10.0.{}.{}:{}", index / 250, index % 250, 7400 + slot)],
                counters: None,
                burn_in: None,
                must_leave: false,
                sharing: None,
            };
            names.push(Name::new(&format!("box{index:06}"))?);
            reports.push(Mutex::new(BoxReport {
                agent: "bench".into(),
                sequence: 0,
                kind,
                rack: format!("rack{}", index / 8),
                paths: Vec::new(),
                gpus: (0..slots).map(gpu).collect(),
                guard: None,
            }));
        }
        let due = names.iter().map(|_| AtomicBool::new(false)).collect();
        Ok(Self { reports, names, due })
    }

    pub(super) fn len(&self) -> usize {
        self.names.len()
    }

    pub(super) fn index_of(&self, gpu: &GpuId) -> anyhow::Result<usize> {
        self.names.binary_search(&gpu.box_name).map_err(|_| anyhow!("there is no box {}", gpu.box_name))
    }

    /// Tells the agent of a box that there are orders, as the answer to a waiting report would.
    pub(super) fn stir(&self, index: usize, agents: &Sender<usize>) {
        if !self.due[index].swap(true, Ordering::AcqRel) {
            let _ = agents.send(index);
        }
    }

    /// Reports for each box that was stirred, until the last sender of `stir` is dropped.
    pub(super) fn attend(&self, local: &Local, stirred: &Mutex<Receiver<usize>>) -> anyhow::Result<()> {
        loop {
            let next = stirred.lock().unwrap_or_else(PoisonError::into_inner).recv();
            let Ok(index) = next else { return Ok(()) };
            self.due[index].store(false, Ordering::Release);
            self.report(local, index, |_| {})?;
        }
    }

    /// One box reports, after `change`; what it is told to clean is clean from then on, and reported too.
    pub(super) fn report(
        &self,
        local: &Local,
        index: usize,
        change: impl FnOnce(&mut BoxReport),
    ) -> anyhow::Result<()> {
        // One report of a box at a time: a later one that arrives first would silence the other.
        let mut report = self.reports[index].lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut report);
        loop {
            report.sequence += 1;
            let command = Command::Report { box_name: self.names[index].clone(), report: report.clone() };
            let answer = local.apply(command).map_err(|detail| anyhow!(detail.message))?;
            let Answer::Orders(orders) = answer else {
                return Err(anyhow!("a report was not answered with orders"));
            };
            let mut has_news = false;
            for order in orders.slots {
                let gpu = report.gpus.iter_mut().find(|gpu| gpu.slot == order.slot);
                if let (Some(gpu), Want::Clean { epoch }) = (gpu, order.want)
                    && gpu.cleaned_epoch < epoch
                {
                    gpu.cleaned_epoch = epoch;
                    has_news = true;
                }
            }
            if !has_news {
                return Ok(());
            }
        }
    }
}
