use super::*;
use pool_api::{Explanation, Filter, FilterCount, LeaseState};

const DAY_MS: u64 = 24 * 3600 * 1000;
/// A full hour, so that steps begin with it.
const NOON: u64 = 1_800_000 * 1_000_000;

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn sample(leased: f32, tenants: &[(&str, f32)]) -> Sample {
    let sums = |leased| Sums { leased, busy_pct: 50.0 * leased, busy_of: leased, ..Sums::default() };
    Sample {
        pool: sums(leased),
        tenants: tenants.iter().map(|(tenant, leased)| (name(tenant), sums(*leased))).collect(),
    }
}

#[test]
fn an_hour_is_kept_by_ten_seconds_and_a_day_by_two_minutes_and_no_more() {
    let mut history = History::default();
    let end = NOON + 3 * DAY_MS;
    let mut finished = 0;
    for now_ms in (NOON..end).step_by(SAMPLE_MS as usize) {
        finished += usize::from(history.add(now_ms, sample(1.0, &[])).is_some());
    }
    let (hour, day) = (history.points(Span::Hour, None, end, 0), history.points(Span::Day, None, end, 0));
    assert_eq!(
        (hour.len(), day.len()),
        (HOUR_STEPS - 1, DAY_STEPS - 1),
        "the step that was cut by the span is left out"
    );
    assert!(hour.iter().all(|point| point.span_ms == SAMPLE_MS && point.at_ms > end - 3_600_000));
    assert!(day.windows(2).all(|pair| pair[1].at_ms - pair[0].at_ms == DAY_STEP_MS));
    assert_eq!(finished, 3 * DAY_STEPS - 1, "each step of the day is handed out once, when it is over");
    assert_eq!(history.hour.first_ms(), Some(end - 3_600_000));
    assert_eq!(history.since_ms(), Some(end - DAY_MS));
}

#[test]
fn a_step_is_the_mean_of_its_samples_also_for_a_tenant_that_came_late() {
    let mut history = History::default();
    for (index, leased) in [8.0, 8.0, 8.0, 0.0].into_iter().enumerate() {
        let tenants: &[(&str, f32)] = if index == 3 { &[("vision", 4.0)] } else { &[] };
        let _ = history.add(NOON + index as u64 * SAMPLE_MS, sample(leased, tenants));
    }
    let now_ms = NOON + 4 * SAMPLE_MS;
    let pool = history.points(Span::Day, None, now_ms, 0);
    assert_eq!((pool.len(), pool[0].mean.leased), (1, 6.0));
    assert_eq!(pool[0].mean.utilisation_pct(), Some(50.0), "of the GPUs that said one, whenever they did");
    let vision = history.points(Span::Day, Some(&name("vision")), now_ms, 0);
    assert_eq!(vision[0].mean.leased, 1.0, "4 GPUs in one sample of four");
    let stranger = history.points(Span::Day, Some(&name("search")), now_ms, 0);
    assert_eq!((stranger[0].mean.leased, stranger[0].mean.utilisation_pct()), (0.0, None));
    assert_eq!(history.tenants(), [name("vision")]);
}

#[test]
fn a_new_leader_goes_on_with_the_day_and_shows_the_hour_in_long_steps_first() {
    let (mut old, mut stored) = (History::default(), Vec::new());
    for now_ms in (NOON..NOON + 2 * DAY_MS).step_by(SAMPLE_MS as usize) {
        stored.extend(old.add(now_ms, sample(2.0, &[("vision", 2.0)])));
    }
    let now_ms = NOON + 2 * DAY_MS;
    let mut new = History::default();
    let future = StoredStep { at_ms: now_ms + DAY_MS, ..stored[0].clone() };
    new.restore(stored.into_iter().chain([future]), now_ms);
    let before = new.points(Span::Hour, None, now_ms, 0);
    assert_eq!(before.len(), 28, "two minutes each; the last one was never finished, the first is cut");
    let finished = new.add(now_ms, sample(4.0, &[]));
    assert_eq!(finished.map(|step| step.at_ms), Some(now_ms - 2 * DAY_STEP_MS), "stored again, as it is");
    let after = new.points(Span::Hour, None, now_ms, 0);
    assert_eq!((after.len(), after[28].mean.leased, after[28].span_ms), (29, 4.0, SAMPLE_MS));
    assert_eq!(new.points(Span::Day, Some(&name("vision")), now_ms, 0)[0].mean.leased, 2.0);
}

#[test]
fn only_what_is_new_is_told_again() {
    let mut history = History::default();
    for index in 0..30 {
        let _ = history.add(NOON + index * SAMPLE_MS, sample(1.0, &[]));
    }
    let now_ms = NOON + 30 * SAMPLE_MS;
    let all = history.points(Span::Hour, None, now_ms, 0);
    let last_ms = all[all.len() - 3].at_ms;
    assert_eq!(history.points(Span::Hour, None, now_ms, last_ms), all[all.len() - 2..]);
}

#[test]
fn many_tenants_cost_no_more_than_the_largest() {
    let mut history = History::default();
    let mut crowd = Sample::default();
    for number in 0..1000 {
        let sums = Sums { leased: number as f32, ..Sums::default() };
        crowd.tenants.insert(name(&format!("t{number}")), sums);
    }
    let _ = history.add(NOON, crowd);
    let kept = history.tenants();
    assert_eq!(kept.len(), TENANTS_MAX);
    assert!(kept.contains(&name("t999")) && !kept.contains(&name("t1")));
}

#[test]
fn a_lease_waits_for_the_first_reason_that_holds() {
    let reason = |filters: &[Filter]| {
        let count = |filter: &Filter| FilterCount { filter: *filter, gpus: 1 };
        Reason::of(&Explanation {
            lease: "l-00c0ffee00c0ffee".parse().unwrap(),
            state: LeaseState::Pending,
            ahead: 0,
            filters: filters.iter().map(count).collect(),
            reasons: Vec::new(),
            remedies: Vec::new(),
        })
    };
    assert_eq!(reason(&[Filter::Leased, Filter::Quota]), Reason::Quota);
    assert_eq!(reason(&[Filter::Model, Filter::Leased, Filter::Topology]), Reason::Leased);
    assert_eq!(reason(&[Filter::Model, Filter::Topology]), Reason::Together);
    assert_eq!(reason(&[Filter::Leased, Filter::Usable]), Reason::Queue);
    assert_eq!(reason(&[Filter::Health]), Reason::Out);
    assert_eq!(reason(&[Filter::Model]), Reason::NoneFits);
    let mut words: Vec<&str> = Reason::ALL.iter().map(|reason| reason.as_str()).collect();
    words.dedup();
    assert_eq!(words.len(), Reason::ALL.len());
}

#[test]
fn the_activity_of_multiprocessors_is_the_mean_of_the_gpus_that_report_it() {
    let sums = Sums { gpus: 8.0, busy_pct: 800.0, busy_of: 8.0, sm_pct: 60.0, sm_of: 2.0, ..Sums::default() };
    let mut history = History::default();
    for index in 0..3 {
        let quiet = Sums { gpus: 8.0, ..Sums::default() };
        let pool = if index == 2 { quiet } else { sums };
        let _ = history.add(NOON + index * SAMPLE_MS, Sample { pool, ..Sample::default() });
    }
    let day = history.points(Span::Day, None, NOON + 3 * SAMPLE_MS, 0);
    assert_eq!(day[0].mean.sm_activity_pct().map(f32::round), Some(30.0));
    let hour = history.points(Span::Hour, None, NOON + 3 * SAMPLE_MS, 0);
    let hour: Vec<_> = hour.iter().map(|point| point.mean.sm_activity_pct()).collect();
    assert_eq!(hour, [Some(30.0), Some(30.0), None]);
}

/// A record as managers have written it. If the shape must change, add an upgrade to `records::HISTORY`.
#[test]
fn a_stored_step_is_read_as_it_was_written() {
    let golden = concat!(
        r#"{"v":1,"at_ms":1800000000000,"step":{"samples":12,"pool":{"gpus":24.0,"free":8.0,"leased":16.0,"#,
        r#""busy_pct":1200.0,"busy_of":24.0,"memory_used":1024.0,"memory_of":4096.0,"waiting":1.0,"#,
        r#""reasons":[0.0,0.0,1.0,0.0,0.0,0.0,0.0,0.0,0.0]},"tenants":{"vision":{"gpus":0.0,"free":0.0,"leased":2.0,"#,
        r#""busy_pct":0.0,"busy_of":0.0,"memory_used":0.0,"memory_of":0.0,"waiting":0.0,"#,
        r#""reasons":[0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0,0.0]}}}}"#
    );
    let step = crate::records::HISTORY.read(golden.as_bytes()).unwrap();
    assert_eq!((step.slot(), step.step.samples), (240, 12));
    assert_eq!(String::from_utf8(crate::records::HISTORY.write(&step)).unwrap(), golden);

    // A step of GPUs that tell the activity of their multiprocessors.
    let golden = golden.replace(r#""busy_of":24.0,"#, r#""busy_of":24.0,"sm_pct":300.0,"sm_of":12.0,"#);
    let step = crate::records::HISTORY.read(golden.as_bytes()).unwrap();
    assert_eq!(step.step.pool.sm_activity_pct(), Some(25.0));
    assert_eq!(String::from_utf8(crate::records::HISTORY.write(&step)).unwrap(), golden);
}
