use super::{super::tests::config, *};

const PATIENCE: Duration = Duration::from_secs(60);

fn place(name: &str) -> Place {
    let address: Address = format!("unix:/{name}").parse().unwrap();
    Place::first(&address, &config())
}

/// What the search does at `now`, in words.
fn told(search: &mut Search, now_ms: u64) -> String {
    match search.next(Duration::from_millis(now_ms), PATIENCE) {
        Next::Try(place) => place.address.to_string(),
        Next::Pause => "pause".to_owned(),
        Next::AskKeeper => "ask".to_owned(),
        Next::GiveUp(why) => format!("give up: {why}"),
    }
}

fn again() -> Failure {
    Failure::Again("busy".to_owned())
}

fn elsewhere() -> Failure {
    Failure::Elsewhere("the lease has ended".to_owned())
}

#[test]
fn the_own_worker_comes_first_then_the_standbys_and_round_again_until_patience_ends() {
    let mut search = Search::new(vec![place("own"), place("one"), place("two")], false, String::new());
    for now in [0, 500] {
        for address in ["unix:/own", "unix:/one", "unix:/two"] {
            assert_eq!(told(&mut search, now), address);
            search.failed(&again());
        }
        assert_eq!(told(&mut search, now), "pause");
    }
    for _ in 0..3 {
        told(&mut search, 59_000);
        search.failed(&again());
    }
    assert_eq!(told(&mut search, 60_000), "give up: busy");
}

#[test]
fn a_place_that_refuses_is_not_asked_again_and_the_last_refusal_ends_the_search_at_once() {
    let mut search = Search::new(vec![place("own"), place("one")], false, String::new());
    assert_eq!(told(&mut search, 0), "unix:/own");
    search.failed(&elsewhere());
    assert_eq!(told(&mut search, 0), "unix:/one");
    search.failed(&again());
    assert_eq!(told(&mut search, 0), "pause");
    assert_eq!(told(&mut search, 20), "unix:/one");
    search.failed(&elsewhere());
    assert_eq!(told(&mut search, 20), "give up: the lease has ended");
}

#[test]
fn a_session_that_differs_by_chance_is_replaced_by_another_of_the_same_place_a_few_times() {
    let anew = || Failure::Anew("variables lie elsewhere".to_owned());
    let mut search = Search::new(vec![place("own"), place("one")], true, String::new());
    assert_eq!(told(&mut search, 0), "unix:/own");
    search.failed(&anew());
    assert_eq!(told(&mut search, 0), "unix:/own");
    search.failed(&elsewhere());
    assert_eq!(told(&mut search, 0), "unix:/one");
    search.failed(&elsewhere());
    assert_eq!(told(&mut search, 0), "ask");
    search.give(place("new"));
    for _ in 1..ANEW_MAX {
        assert_eq!(told(&mut search, 0), "unix:/new");
        search.failed(&anew());
    }
    assert_eq!(told(&mut search, 0), "unix:/new");
    search.failed(&anew());
    assert_eq!(told(&mut search, 0), "ask", "so often is no chance");
}

#[test]
fn a_single_worker_that_refuses_costs_no_patience() {
    let mut search = Search::new(vec![place("own")], false, String::new());
    told(&mut search, 0);
    search.failed(&elsewhere());
    assert_eq!(told(&mut search, 0), "give up: the lease has ended");
}

#[test]
fn the_keeper_is_asked_when_the_known_places_had_their_moment_or_have_refused() {
    let mut search = Search::new(vec![place("own")], true, String::new());
    told(&mut search, 0);
    search.failed(&again());
    assert_eq!(told(&mut search, 0), "pause");
    told(&mut search, 1000);
    search.failed(&again());
    assert_eq!(told(&mut search, 1000), "ask");
    search.give(place("new"));
    assert_eq!(told(&mut search, 1000), "unix:/new");
    search.failed(&elsewhere());
    assert_eq!(told(&mut search, 1000), "unix:/own", "the refusal was that of the given place");
    search.failed(&elsewhere());
    assert_eq!(told(&mut search, 1000), "ask");
    search.keeper_is_gone();
    assert_eq!(told(&mut search, 1000), "give up: the lease has ended");
}

#[test]
fn without_any_place_the_keeper_is_asked_at_once_and_without_a_keeper_the_cause_is_told() {
    assert_eq!(told(&mut Search::new(Vec::new(), true, "the device failed".to_owned()), 0), "ask");
    let mut none = Search::new(Vec::new(), false, "the device failed".to_owned());
    assert_eq!(told(&mut none, 0), "give up: the device failed");
}

#[test]
fn what_the_keeper_names_is_read_and_what_it_leaves_open_is_as_before() {
    let named = keeper::Place {
        address: "tls:gpu-box:7400".to_owned(),
        name: "gpu-box.pool".to_owned(),
        guardian: "tcp:gpu-box:7401".to_owned(),
        ..keeper::Place::default()
    };
    let place = Place::named(&named, &config()).unwrap();
    assert_eq!(place.config.names, ["gpu-box.pool"]);
    assert_eq!((place.address.to_string(), place.guardian), (named.address, named.guardian));
    let bad = keeper::Place { address: "tcp:no-port".to_owned(), ..keeper::Place::default() };
    assert!(Place::named(&bad, &config()).err().unwrap().contains("tcp:no-port"));
}
