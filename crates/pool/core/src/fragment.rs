//! Fragments: idle GPU capacity that the usual requests could not use.
//!
//! For every shape of the mix, all that is idle in a box falls into one of seven classes; weighted by how often the
//! shape is asked for, everything but `satisfied` is fragment. The rules are those of "Beware of Fragmentation"
//! (USENIX ATC 2023), to the last bit: sums are made per class in the order of the mix, then over classes.

use crate::{GpuBox, GpuNeed, Mix, ModelId, Shape};

/// Thousandths of idle GPU by what they lack, averaged over a mix of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Fragment {
    /// Neither slots nor processors suffice.
    pub lack_both: f64,
    /// The processors suffice, the slots do not; also slots too full for a request that other slots here can serve.
    pub lack_gpu: f64,
    /// Can be used: no fragment.
    pub satisfied: f64,
    /// The slots suffice, the processors do not.
    pub lack_cpu: f64,
    /// The request wants no GPU, and the box can serve it.
    pub unwanted: f64,
    /// The request wants no GPU, and the box cannot serve it.
    pub unwanted_lack_cpu: f64,
    /// The request does not accept this model.
    pub wrong_model: f64,
}

impl Fragment {
    /// Thousandths of GPU that the mix cannot use.
    pub fn wasted(&self) -> f64 {
        self.lack_both
            + self.lack_gpu
            + self.lack_cpu
            + self.unwanted
            + self.unwanted_lack_cpu
            + self.wrong_model
    }

    /// Adds up boxes, class by class.
    pub fn add(&mut self, other: &Self) {
        self.lack_both += other.lack_both;
        self.lack_gpu += other.lack_gpu;
        self.satisfied += other.satisfied;
        self.lack_cpu += other.lack_cpu;
        self.unwanted += other.unwanted;
        self.unwanted_lack_cpu += other.unwanted_lack_cpu;
        self.wrong_model += other.wrong_model;
    }
}

/// The fragment of a box as it stands.
pub fn fragment_of(state: &GpuBox, mix: &Mix) -> Fragment {
    Leftover::of(state).fragment(mix)
}

/// What is left of a box, really or in thought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leftover<'a> {
    pub(crate) model: ModelId,
    pub(crate) cpu_milli: u32,
    /// Thousandths left of each slot.
    pub(crate) slots: &'a [u16],
}

impl<'a> Leftover<'a> {
    pub(crate) fn of(state: &'a GpuBox) -> Self {
        Self { model: state.model, cpu_milli: state.cpu_milli_free, slots: &state.slot_milli_free }
    }

    pub(crate) fn fragment(&self, mix: &Mix) -> Fragment {
        let mut fragment = Fragment::default();
        let idle: u32 = self.slots.iter().map(|&free| u32::from(free)).sum();
        if idle == 0 {
            return fragment;
        }
        for typical in mix.typical() {
            self.add_class(&typical.shape, typical.frequency, f64::from(idle), &mut fragment);
        }
        fragment
    }

    fn add_class(&self, shape: &Shape, frequency: f64, idle: f64, fragment: &mut Fragment) {
        let has_cpu = self.cpu_milli >= shape.cpu_milli;
        let weighted = frequency * idle;
        if shape.gpus == GpuNeed::None {
            let class = if has_cpu { &mut fragment.unwanted } else { &mut fragment.unwanted_lack_cpu };
            *class += weighted;
            return;
        }
        if !shape.models.accepts(self.model) {
            fragment.wrong_model += weighted;
            return;
        }
        let milli = shape.gpus.slot_milli();
        let (mut fitting, mut too_full) = (0, 0);
        for &free in self.slots {
            let fits = u32::from(free) >= milli;
            fitting += u32::from(fits);
            too_full += if fits { 0 } else { u32::from(free) };
        }
        let has_gpus = fitting >= shape.gpus.slots();
        match (has_gpus, has_cpu) {
            (false, false) => fragment.lack_both += weighted,
            (false, true) => fragment.lack_gpu += weighted,
            (true, false) => fragment.lack_cpu += weighted,
            (true, true) => {
                let too_full = frequency * f64::from(too_full);
                fragment.lack_gpu += too_full;
                fragment.satisfied += weighted - too_full;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelFilter, Models};

    fn mix(shape: &Shape) -> Mix {
        Mix::observe([shape], 95)
    }

    fn shape(cpu_milli: u32, gpus: GpuNeed) -> Shape {
        Shape { cpu_milli, gpus, models: ModelFilter::any() }
    }

    const LEFT: Leftover<'static> = Leftover { model: ModelId(0), cpu_milli: 10, slots: &[1000, 300, 0] };

    #[test]
    fn what_fits_is_no_fragment_but_slots_too_full_for_it_are() {
        let fragment = LEFT.fragment(&mix(&shape(10, GpuNeed::Share(500))));
        assert_eq!(fragment, Fragment { lack_gpu: 300.0, satisfied: 1000.0, ..Fragment::default() });
        assert_eq!(fragment.wasted(), 300.0);
        assert_eq!(LEFT.fragment(&mix(&shape(10, GpuNeed::Share(200)))).wasted(), 0.0);
    }

    #[test]
    fn each_lack_has_its_class() {
        let all = 1300.0;
        let class = |cpu, gpus| LEFT.fragment(&mix(&shape(cpu, gpus)));
        assert_eq!(class(11, GpuNeed::Whole(2)).lack_both, all);
        assert_eq!(class(10, GpuNeed::Whole(2)).lack_gpu, all);
        assert_eq!(class(11, GpuNeed::Whole(1)).lack_cpu, all);
        assert_eq!(class(10, GpuNeed::None).unwanted, all);
        assert_eq!(class(11, GpuNeed::None).unwanted_lack_cpu, all);
        let mut models = Models::default();
        models.id("A").unwrap();
        let other = Shape { models: models.filter("B").unwrap(), ..shape(1, GpuNeed::Whole(1)) };
        assert_eq!(LEFT.fragment(&mix(&other)).wrong_model, all);
        assert_eq!(Leftover { slots: &[0, 0], ..LEFT }.fragment(&mix(&other)), Fragment::default());
    }

    #[test]
    fn classes_are_weighted_by_how_often_a_shape_is_asked_for() {
        let (fits, does_not) = (shape(0, GpuNeed::Share(300)), shape(0, GpuNeed::Whole(3)));
        let mix = Mix::observe([&fits, &fits, &fits, &does_not], 95);
        assert_eq!(LEFT.fragment(&mix).wasted(), 325.0);
    }
}
