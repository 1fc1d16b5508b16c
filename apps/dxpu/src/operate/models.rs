//! Models that an admin names in a setting. A model that no box has yet is allowed, because a box may join later; a typo looks
//! the same, so the admin is told.

use super::ask;
use pool_api::{Model, SpareStatus};
use pool_client::Client;

/// Tells which of the models no GPU of the pool has. A pool without GPUs, or one that does not answer, is no reason to doubt.
pub(super) fn tell_unknown<'a>(client: &Client, named: impl IntoIterator<Item = &'a Model>) {
    let Ok((spares, _)) = ask::all::<SpareStatus>(client, "/v1/spares") else { return };
    let known: Vec<Model> =
        spares.into_iter().filter(|status| status.gpus > 0).map(|status| status.model).collect();
    for model in named {
        if let Some(said) = doubt(model, &known) {
            errln!("{said}");
        }
    }
}

fn doubt(model: &Model, known: &[Model]) -> Option<String> {
    if known.is_empty() || known.contains(model) {
        return None;
    }
    let names: Vec<&str> = known.iter().map(Model::as_str).collect();
    Some(format!(
        "dxpu: no GPU of this pool is of model {model}; it has {}. The setting waits for one: check the name",
        names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_no_gpu_has_is_doubted() {
        let model = |text: &str| Model::new(text).unwrap();
        let known = [model("H200"), model("L40S")];
        assert_eq!(
            doubt(&model("H2OO"), &known).as_deref(),
            Some(
                "dxpu: no GPU of this pool is of model H2OO; it has H200, L40S. The setting waits for one: check the name"
            )
        );
        assert_eq!(doubt(&model("H200"), &known), None);
        assert_eq!(doubt(&model("H200"), &[]), None, "the pool has no boxes yet");
    }
}
