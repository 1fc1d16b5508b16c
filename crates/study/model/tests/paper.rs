//! The closed form against the paper's rows: golden values, and proof that the check can fail.

use model::check::{Report, Verdict, check};
use model::equation::V100;
use model::paper::{Family, Row, family_of, paper_rows};

fn report_of(change: impl Fn(&mut Row)) -> Report {
    let mut rows = paper_rows();
    rows.iter_mut().for_each(change);
    check(&V100, &rows)
}

#[test]
fn every_target_is_met() {
    let report = check(&V100, &paper_rows());
    assert_eq!(report.missed, Vec::<String>::new());
    assert_eq!(report.rows.len(), 70);
    assert_eq!(report.rows_predicted, 53);
}

/// The figures of docs/results/model.md. A change of the model or of a row changes them, and must change the page.
#[test]
fn the_published_figures_are_reproduced() {
    let report = check(&V100, &paper_rows());
    let near = |value: f64, golden: f64| {
        assert!((value - golden).abs() < 0.005, "{value} is not the published {golden}");
    };
    near(report.rmse_pct, 0.733);
    near(report.max_pct, 2.035);
    near(report.left_out_rmse_pct, 0.865);
    let golden = [
        (Family::TrainingAndGlmark, 0.946),
        (Family::Table4AndFig4, 0.271),
        (Family::Table12, 0.781),
        (Family::CpuParameters, 0.517),
        (Family::ForwardAndFused, 0.572),
        (Family::ImageNet, 0.743),
        (Family::ShortKernels, 1.233),
    ];
    for (family, (golden_family, rmse)) in report.families.iter().zip(golden) {
        assert_eq!(family.family, golden_family);
        near(family.rmse_pct, rmse);
    }
}

#[test]
fn a_family_fitted_alone_comes_closer_with_fewer_constants_than_a_third_of_its_rows() {
    let report = check(&V100, &paper_rows());
    for family in &report.families {
        let alone = family.own_fit.as_ref().unwrap();
        assert!(alone.rmse_pct <= family.rmse_pct + 1e-6, "{}", family.family.name());
        assert!(3 * alone.fitted.len() < family.rows, "{}", family.family.name());
    }
    let largest = |family: Family| {
        let found = report.families.iter().find(|report| report.family == family).unwrap();
        found.own_fit.as_ref().unwrap().max_pct
    };
    assert!(largest(Family::Table4AndFig4) < 0.5);
    assert!(largest(Family::Table12) < 1.0);
    assert!(largest(Family::CpuParameters) < 0.6);
}

#[test]
fn no_part_of_the_formula_is_idle() {
    let report = check(&V100, &paper_rows());
    for without in &report.without {
        assert!(without.rmse_pct > report.rmse_pct, "{} makes no difference", without.without);
    }
    assert!(report.stated_mechanism_rmse_pct > 3.0 * report.rmse_pct);
}

#[test]
fn leaving_a_row_out_changes_its_prediction_but_little() {
    let report = check(&V100, &paper_rows());
    for row in &report.rows {
        if let Verdict::Predicted { error_pct, left_out_error_pct, .. } = row.verdict {
            assert!((error_pct - left_out_error_pct).abs() < 1.0, "{} hangs on itself", row.name);
            assert_ne!(error_pct, left_out_error_pct, "{} was not left out", row.name);
        }
    }
}

#[test]
fn a_family_that_the_model_cannot_follow_is_reported() {
    let report = report_of(|row| {
        if family_of(row) == Family::Table4AndFig4 && row.rtt_us > 6.0 {
            row.performance_pct -= 5.0;
        }
    });
    assert!(report.missed.iter().any(|missed| missed.contains("table 4 and fig. 4: RMSE")));
}

#[test]
fn a_parameter_left_with_three_rows_is_called_a_row_in_disguise() {
    let is_kept = |row: &Row| !(row.table == "11" && row.batch == "8");
    let rows: Vec<Row> = paper_rows().into_iter().filter(is_kept).collect();
    let missed = check(&V100, &rows).missed;
    for words in [
        "launch_period_us explains only 3 rows",
        "ssd320: 1 parameters of its own for 3 rows",
        "ssd320, fitted alone: 1 parameters for 3 rows",
    ] {
        assert!(missed.iter().any(|missed| missed.starts_with(words)), "{missed:?} does not say {words}");
    }
}

#[test]
fn a_family_without_rows_does_not_pass() {
    let rows: Vec<Row> = paper_rows().into_iter().filter(|row| row.table != "12").collect();
    let report = check(&V100, &rows);
    assert!(report.missed.iter().any(|missed| missed.contains("table 12: no row to check")));
}

#[test]
fn the_fit_is_the_same_whatever_the_order_of_the_rows() {
    let mut rows = paper_rows();
    rows.reverse();
    let (there, back) = (check(&V100, &paper_rows()), check(&V100, &rows));
    for (there, back) in there.parameters.iter().zip(&back.parameters) {
        assert!((there.value / back.value - 1.0).abs() < 1e-5, "{} depends on the order", there.name);
    }
}
