//! Levenberg-Marquardt for small problems: deterministic, positive parameters, derivatives by differences.
//!
//! Parameters are searched by their logarithms, so that a rate or a duration can never turn negative on the way.

/// What a fit found.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    /// The parameters.
    pub parameters: Vec<f64>,
    /// Sum of the squared residuals there.
    pub sum_of_squares: f64,
    /// Steps that were tried.
    pub steps: usize,
}

/// More steps than any fit here ever takes (about forty); a bound, so that a bad model ends too.
const STEPS_MAX: usize = 400;
/// Relative width of the difference that stands for a derivative.
const DIFFERENCE: f64 = 1e-6;
const DAMPING_START: f64 = 1e-2;
const DAMPING_MIN: f64 = 1e-12;
const DAMPING_MAX: f64 = 1e12;
/// A step that gains less than this, relatively, ends the search.
const GAIN_MIN: f64 = 1e-14;

/// Finds the positive parameters, beginning at `start`, for which the squares of `residuals` sum to the least.
///
/// # Panics
///
/// If a value of `start` is not positive.
pub fn fit(start: &[f64], residuals: impl Fn(&[f64]) -> Vec<f64>) -> Fit {
    assert!(start.iter().all(|&value| value > 0.0), "a fit of positive parameters starts at positive ones");
    let at = |logarithms: &[f64]| {
        let parameters: Vec<f64> = logarithms.iter().map(|value| value.exp()).collect();
        residuals(&parameters)
    };
    let mut here: Vec<f64> = start.iter().map(|value| value.ln()).collect();
    let mut errors = at(&here);
    let mut cost = sum_of_squares(&errors);
    let mut damping = DAMPING_START;
    let mut steps = 0;
    while steps < STEPS_MAX && damping < DAMPING_MAX {
        steps += 1;
        let slopes = slopes(&here, &at);
        let Some(step) = damped_step(&slopes, &errors, damping) else { break };
        let there: Vec<f64> = here.iter().zip(&step).map(|(value, step)| value + step).collect();
        let errors_there = at(&there);
        let cost_there = sum_of_squares(&errors_there);
        if cost_there.is_finite() && cost_there < cost {
            let gain = (cost - cost_there) / cost;
            (here, errors, cost) = (there, errors_there, cost_there);
            damping = (damping / 10.0).max(DAMPING_MIN);
            if gain < GAIN_MIN {
                break;
            }
        } else {
            damping *= 10.0;
        }
    }
    let parameters = here.iter().map(|value| value.exp()).collect();
    Fit { parameters, sum_of_squares: cost, steps }
}

fn sum_of_squares(errors: &[f64]) -> f64 {
    errors.iter().map(|error| error * error).sum()
}

/// Columns of the Jacobian, one per parameter.
fn slopes(here: &[f64], at: &impl Fn(&[f64]) -> Vec<f64>) -> Vec<Vec<f64>> {
    let column = |index: usize| {
        let mut point = here.to_vec();
        point[index] = here[index] + DIFFERENCE;
        let above = at(&point);
        point[index] = here[index] - DIFFERENCE;
        let below = at(&point);
        above.iter().zip(&below).map(|(above, below)| (above - below) / (2.0 * DIFFERENCE)).collect()
    };
    (0..here.len()).map(column).collect()
}

/// Solves (J'J + damping * I) step = -J' errors. The problem is in logarithms, so the identity is a fair measure of length.
fn damped_step(slopes: &[Vec<f64>], errors: &[f64], damping: f64) -> Option<Vec<f64>> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let count = slopes.len();
    let mut matrix: Vec<Vec<f64>> =
        slopes.iter().map(|row| slopes.iter().map(|column| dot(row, column)).collect()).collect();
    for (index, row) in matrix.iter_mut().enumerate() {
        row[index] += damping;
        row.push(-dot(&slopes[index], errors));
    }
    solve(matrix, count)
}

/// Gaussian elimination with the largest pivot of each column; `None` where there is none to divide by.
fn solve(mut rows: Vec<Vec<f64>>, count: usize) -> Option<Vec<f64>> {
    for column in 0..count {
        let pivot =
            (column..count).max_by(|&a, &b| rows[a][column].abs().total_cmp(&rows[b][column].abs()))?;
        rows.swap(column, pivot);
        let divisor = rows[column][column];
        if divisor == 0.0 || !divisor.is_finite() {
            return None;
        }
        let (done, below) = rows.split_at_mut(column + 1);
        for row in below {
            let factor = row[column] / divisor;
            for (value, pivot) in row.iter_mut().zip(&done[column]) {
                *value -= factor * pivot;
            }
        }
    }
    let mut solution = vec![0.0; count];
    for row in (0..count).rev() {
        let known: f64 = (row + 1..count).map(|at| rows[row][at] * solution[at]).sum();
        solution[row] = (rows[row][count] - known) / rows[row][row];
    }
    Some(solution)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exact_law_is_found_exactly() {
        let law = |p: &[f64], x: f64| p[0] * (-x / p[1]).exp() + p[2];
        let truth = [3.0, 0.7, 0.25];
        let points: Vec<f64> = (0..20).map(|index| f64::from(index) * 0.2).collect();
        let found = fit(&[1.0, 1.0, 1.0], |p| points.iter().map(|&x| law(p, x) - law(&truth, x)).collect());
        for (found, truth) in found.parameters.iter().zip(truth) {
            assert!((found - truth).abs() < 1e-6, "{found} is not {truth}");
        }
        assert!(found.sum_of_squares < 1e-12 && found.steps < 100);
    }

    #[test]
    fn a_line_through_noisy_points_is_the_textbooks() {
        // y = 2x + 1 with errors +-0.1 in a pattern whose least-squares answer is known by hand.
        let points = [(0.0, 1.1), (1.0, 2.9), (2.0, 4.9), (3.0, 7.1)];
        let found = fit(&[1.0, 1.0], |p| points.iter().map(|(x, y)| p[0] * x + p[1] - y).collect());
        assert!((found.parameters[0] - 2.0).abs() < 1e-6);
        assert!((found.parameters[1] - 1.0).abs() < 1e-6);
        assert!((found.sum_of_squares - 0.04).abs() < 1e-9);
    }

    #[test]
    fn a_parameter_without_effect_stays_where_it_was() {
        let found = fit(&[1.0, 5.0], |p| vec![p[0] - 2.0]);
        assert!((found.parameters[0] - 2.0).abs() < 1e-6);
        assert!((found.parameters[1] - 5.0).abs() < 1e-9);
    }
}
