//! What is usually asked for: the mix of shapes against which leftovers are judged.

use crate::Shape;
use std::cmp::Reverse;
use std::collections::HashMap;

/// One shape of the mix.
#[derive(Clone, Debug, PartialEq)]
pub struct Typical {
    /// What is asked for.
    pub shape: Shape,
    /// How often, of all requests of the mix; these add up to one.
    pub frequency: f64,
}

/// The shapes that make up most requests, commonest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mix {
    typical: Vec<Typical>,
}

impl Mix {
    /// Counts the shapes and keeps the commonest ones, until they are at least `cover_pct` percent of all requests.
    ///
    /// The order of equally common shapes is part of the published rules (largest first), since the sums of a
    /// fragment are made in the order of the mix and truncated later.
    pub fn observe<'a>(shapes: impl IntoIterator<Item = &'a Shape>, cover_pct: u64) -> Self {
        let mut counts: HashMap<&Shape, u64> = HashMap::new();
        let mut total = 0;
        for shape in shapes {
            *counts.entry(shape).or_default() += 1;
            total += 1;
        }
        let mut ranked: Vec<(&Shape, u64)> = counts.into_iter().collect();
        ranked.sort_by_cached_key(|(shape, count)| {
            let gpus = (shape.gpus.slot_milli(), shape.gpus.slots());
            Reverse((*count, shape.cpu_milli, gpus, shape.models.clone()))
        });

        let groups = ranked.len();
        let mut taken = 0;
        let enough = ranked.iter().position(|(_, count)| {
            taken += count;
            taken * 100 >= total * cover_pct
        });
        ranked.truncate(enough.map_or(groups, |last| last + 1));

        let all = total as f64;
        let covered = if ranked.len() == groups { 1.0 } else { taken as f64 / all };
        let typical = |(shape, count): (&Shape, u64)| Typical {
            shape: shape.clone(),
            frequency: count as f64 / all / covered,
        };
        Self { typical: ranked.into_iter().map(typical).collect() }
    }

    /// The shapes, commonest first.
    pub fn typical(&self) -> &[Typical] {
        &self.typical
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GpuNeed, ModelFilter};

    fn shape(cpu_milli: u32, gpus: GpuNeed) -> Shape {
        Shape { cpu_milli, gpus, models: ModelFilter::any() }
    }

    #[test]
    fn rare_shapes_are_left_out_and_the_rest_adds_up_to_one() {
        let (common, usual, rare) =
            (shape(1, GpuNeed::Whole(1)), shape(2, GpuNeed::Share(500)), shape(3, GpuNeed::None));
        let mut seen = vec![&common; 60];
        seen.extend(vec![&usual; 36]);
        seen.extend(vec![&rare; 4]);
        let mix = Mix::observe(seen.iter().copied(), 95);
        let shapes: Vec<&Shape> = mix.typical().iter().map(|typical| &typical.shape).collect();
        assert_eq!(shapes, [&common, &usual]);
        assert_eq!(mix.typical()[0].frequency, 0.6 / 0.96);
        assert_eq!(Mix::observe(seen, 97).typical().len(), 3);
    }

    #[test]
    fn of_equally_common_shapes_the_largest_comes_first() {
        let (large, small) = (shape(9, GpuNeed::Share(10)), shape(9, GpuNeed::Share(5)));
        let mix = Mix::observe([&small, &large], 95);
        assert_eq!(mix.typical()[0].shape, large);
        assert_eq!(mix.typical()[0].frequency, 0.5);
        assert_eq!(Mix::observe([], 95), Mix::default());
    }
}
