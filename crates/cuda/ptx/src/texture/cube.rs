//! Cubemaps: a direction is a face and a place on it.

/// The face that a direction meets, and where on it, from 0 to 1.
pub(super) fn face([x, y, z]: [f64; 3]) -> (u64, f64, f64) {
    let (face, s, t, major) = if x.abs() >= y.abs() && x.abs() >= z.abs() {
        if x >= 0.0 { (0, -z, -y, x) } else { (1, z, -y, x) }
    } else if y.abs() >= z.abs() {
        if y >= 0.0 { (2, x, z, y) } else { (3, x, -z, y) }
    } else if z >= 0.0 {
        (4, x, -y, z)
    } else {
        (5, -x, -y, z)
    };
    // A direction of zeros is that of no face; the first will do.
    let major = if major == 0.0 { 1.0 } else { major.abs() };
    (face, (s / major + 1.0) / 2.0, (t / major + 1.0) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_axis_meets_the_middle_of_its_face() {
        let axes = [[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, -1.0, 0.0], [0.0, 0.0, 1.0]];
        for (place, axis) in axes.into_iter().enumerate() {
            assert_eq!(face(axis), (place as u64, 0.5, 0.5));
        }
        assert_eq!(face([0.0, 0.0, -3.0]), (5, 0.5, 0.5), "its length does not matter");
    }

    #[test]
    fn faces_lie_as_the_guide_draws_them() {
        assert_eq!(face([1.0, 0.5, 0.25]), (0, 0.375, 0.25));
        assert_eq!(face([0.5, 1.0, 0.25]), (2, 0.75, 0.625));
        assert_eq!(face([0.5, 0.25, -1.0]), (5, 0.25, 0.375));
    }
}
