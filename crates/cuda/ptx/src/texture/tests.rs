//! Samples whose values are known by the rules.

use super::*;
use crate::texture::{ChannelKind, Level};

/// An image of floats: texel (x, y, z) is x + 10 y + 100 z.
fn image(width: u64, height: u64, depth: u64) -> Sampler {
    let level = Level {
        address: 0x1000,
        row_pitch: width * 4,
        slice_pitch: width * height * 4,
        width,
        height,
        depth,
    };
    Sampler {
        levels: vec![level],
        channel: Channel { kind: ChannelKind::Float, bytes: 4, count: 1 },
        is_memory: false,
        address_modes: [AddressMode::Clamp; 3],
        is_linear: false,
        is_normalized: false,
        reads_integers: false,
        is_srgb: false,
        is_mip_linear: false,
        lod_bias: 0.0,
        lod_bounds: (0.0, 0.0),
        border: [0.0; 4],
    }
}

fn at(places: [f64; 3], dimensions: usize) -> Coordinates {
    Coordinates { at: places, is_integer: false, layer: None, dimensions, is_cube: false }
}

/// Texels of `sampler`'s levels, by their place; a level adds 1000.
fn fetcher(sampler: &Sampler) -> impl FnMut(u64, u32) -> Option<u32> + use<> {
    let levels = sampler.levels.clone();
    move |address, _| {
        let holds = |level: &&Level| address.wrapping_sub(level.address) < level.slice_pitch * level.depth;
        let place = levels.iter().position(|level| holds(&level))?;
        let (level, offset) = (&levels[place], address - levels[place].address);
        let (z, rest) = (offset / level.slice_pitch, offset % level.slice_pitch);
        let value =
            rest % level.row_pitch / 4 + 10 * (rest / level.row_pitch) + 100 * z + 1000 * place as u64;
        Some((value as f32).to_bits())
    }
}

fn sample(sampler: &Sampler, coordinates: Coordinates, lod: Lod) -> f32 {
    let values = sampler.sample(&coordinates, lod, &mut fetcher(sampler)).expect("inside");
    f32::from_bits(values[0])
}

fn one(sampler: &Sampler, x: f64) -> f32 {
    sample(sampler, at([x, 0.0, 0.0], 1), Lod::Base)
}

#[test]
fn the_nearest_texel_is_the_one_that_holds_the_point() {
    let sampler = image(4, 1, 1);
    assert_eq!([0.0, 0.99, 1.0, 3.5].map(|x| one(&sampler, x)), [0.0, 0.0, 1.0, 3.0]);
    assert_eq!([-5.0, 4.0, 1e30, f64::NAN].map(|x| one(&sampler, x)), [0.0, 3.0, 3.0, 0.0]);
}

#[test]
fn each_mode_brings_back_what_lies_outside() {
    let mut sampler = image(4, 1, 1);
    sampler.is_normalized = true;
    let outside = [-0.125, 1.125, 1.99, 2.1];
    let mut read = |mode| {
        sampler.address_modes = [mode; 3];
        sampler.border = [-7.0; 4];
        outside.map(|x| one(&sampler, x))
    };
    assert_eq!(read(AddressMode::Clamp), [0.0, 3.0, 3.0, 3.0]);
    assert_eq!(read(AddressMode::Wrap), [3.0, 0.0, 3.0, 0.0]);
    assert_eq!(read(AddressMode::Mirror), [0.0, 3.0, 0.0, 0.0]);
    assert_eq!(read(AddressMode::Border), [-7.0; 4]);
    sampler.is_normalized = false;
    sampler.address_modes = [AddressMode::Wrap; 3];
    assert_eq!(one(&sampler, 5.0), 3.0, "texel coordinates do not wrap");
}

#[test]
fn filters_blend_in_256ths() {
    let mut sampler = image(4, 4, 4);
    sampler.is_linear = true;
    assert_eq!(one(&sampler, 1.5), 1.0, "the middle of a texel is the texel");
    assert_eq!(one(&sampler, 2.0), 1.5);
    assert_eq!(one(&sampler, 1.5 + 1.0 / 256.0), 1.0 + 1.0 / 256.0);
    assert_eq!(one(&sampler, 1.5 + 1.0 / 1024.0), 1.0, "finer steps are rounded");
    assert_eq!(one(&sampler, 1.5 + 3.0 / 1024.0), 1.0 + 1.0 / 256.0);
    assert_eq!(one(&sampler, 0.0), 0.0);
    assert_eq!(one(&sampler, 9.0), 3.0);
    assert_eq!(sample(&sampler, at([1.0, 2.0, 0.0], 2), Lod::Base), 15.5);
    assert_eq!(sample(&sampler, at([1.0, 2.0, 3.0], 3), Lod::Base), 265.5);
}

#[test]
fn a_border_is_blended_with_the_edge() {
    let mut sampler = image(4, 1, 1);
    (sampler.is_linear, sampler.address_modes) = (true, [AddressMode::Border; 3]);
    sampler.border = [8.0; 4];
    assert_eq!(one(&sampler, 4.0), 5.5);
}

#[test]
fn layers_are_clamped_and_not_blended() {
    let mut sampler = image(4, 4, 3);
    sampler.is_linear = true;
    let layered = |layer| Coordinates { layer: Some(layer), ..at([1.5, 1.5, 0.0], 2) };
    assert_eq!([0, 2, 9].map(|layer| sample(&sampler, layered(layer), Lod::Base)), [11.0, 211.0, 211.0]);
}

#[test]
fn a_cube_is_read_by_direction() {
    let sampler = image(2, 2, 12);
    let cube = |at, layer| Coordinates { at, is_integer: false, layer, dimensions: 3, is_cube: true };
    assert_eq!(sample(&sampler, cube([1.0, 0.5, 0.5], None), Lod::Base), 0.0);
    assert_eq!(sample(&sampler, cube([0.1, 0.1, -1.0], None), Lod::Base), 500.0);
    assert_eq!(sample(&sampler, cube([0.1, 0.1, -1.0], Some(1)), Lod::Base), 1100.0);
}

#[test]
fn levels_are_chosen_or_blended() {
    let mut sampler = image(4, 4, 1);
    let smaller =
        Level { address: 0x8000, row_pitch: 8, slice_pitch: 16, width: 2, height: 2, ..sampler.levels[0] };
    sampler.levels.push(smaller);
    (sampler.is_normalized, sampler.lod_bounds) = (true, (0.0, 8.0));
    let place = at([0.1, 0.1, 0.0], 2);
    let level = |sampler: &Sampler, level| sample(sampler, place, Lod::Level(level));
    assert_eq!([0.0, 0.4, 0.5, 7.0].map(|lod| level(&sampler, lod)), [0.0, 0.0, 1000.0, 1000.0]);
    let (apart, none) = ([0.5, 0.0, 0.0], [0.0; 3]);
    assert_eq!(sample(&sampler, place, Lod::Gradients(apart, none)), 1000.0, "two texels apart");
    assert_eq!(sample(&sampler, place, Lod::Gradients(none, none)), 0.0);
    sampler.is_mip_linear = true;
    assert_eq!(level(&sampler, 0.25), 250.0);
    sampler.lod_bias = 0.5;
    assert_eq!(sample(&sampler, place, Lod::Base), 500.0);
    sampler.lod_bounds = (0.0, 0.25);
    assert_eq!(sample(&sampler, place, Lod::Base), 250.0);
}

#[test]
fn memory_ends_in_zeros() {
    let mut sampler = image(4, 1, 1);
    sampler.is_memory = true;
    let index = |at| Coordinates { is_integer: true, ..super::tests::at([at, 0.0, 0.0], 1) };
    let read = |at: f64| sampler.sample(&index(at), Lod::Base, &mut fetcher(&sampler)).unwrap()[0];
    assert_eq!([3.0, 4.0, -1.0].map(|at| f32::from_bits(read(at))), [3.0, 0.0, 0.0]);
}

#[test]
fn a_gather_goes_round_from_below() {
    let sampler = image(4, 4, 1);
    let values = sampler.gather(&at([2.0, 2.0, 0.0], 2), 0, &mut fetcher(&sampler)).unwrap();
    assert_eq!(values.map(f32::from_bits), [21.0, 22.0, 12.0, 11.0]);
}

#[test]
fn what_an_element_lacks_is_nothing_and_the_fourth_is_one() {
    let mut sampler = image(4, 1, 1);
    sampler.channel.count = 2;
    let values = sampler.sample(&at([0.5, 0.0, 0.0], 1), Lod::Base, &mut |_, _| Some(0x4000_0000)).unwrap();
    assert_eq!(values.map(f32::from_bits), [2.0, 2.0, 0.0, 1.0]);
    sampler.channel = Channel { kind: ChannelKind::Unsigned, bytes: 1, count: 4 };
    sampler.is_srgb = true;
    let values = sampler.sample(&at([0.5, 0.0, 0.0], 1), Lod::Base, &mut |_, _| Some(0x80)).unwrap();
    let [red, .., alpha] = values.map(f32::from_bits);
    // 0.2158605 by the formula; the table has 8 bits of it.
    assert_eq!(red, 221.0 / 1024.0);
    assert!((alpha - 128.0 / 255.0).abs() < 1e-7, "alpha is no colour");
}

#[test]
fn a_fetch_that_fails_fails_the_sample() {
    assert_eq!(image(4, 1, 1).sample(&at([0.5, 0.0, 0.0], 1), Lod::Base, &mut |_, _| None), None);
}
