//! Models of GPUs, and requests that accept only some of them.

use std::sync::Arc;

/// Models a pool may know: a set of models is one machine word.
pub(crate) const MODELS_MAX: usize = 64;

/// A model of GPU, such as `H200`, known to one pool by number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelId(pub u8);

/// There are more models than a pool can tell apart.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a pool can tell {MODELS_MAX} models of GPU apart, and {name} is one more")]
pub struct TooManyModels {
    /// The model that was one too many.
    pub name: String,
}

/// The models one pool has heard of, in boxes or in requests.
#[derive(Clone, Debug, Default)]
pub struct Models {
    names: Vec<String>,
}

impl Models {
    /// The number of this model, given now if it has none.
    pub fn id(&mut self, name: &str) -> Result<ModelId, TooManyModels> {
        let known = self.names.iter().position(|known| known == name);
        let number = match known {
            Some(number) => number,
            None if self.names.len() == MODELS_MAX => return Err(TooManyModels { name: name.to_owned() }),
            None => {
                self.names.push(name.to_owned());
                self.names.len() - 1
            }
        };
        Ok(ModelId(number as u8))
    }

    /// The name of a model.
    pub fn name(&self, model: ModelId) -> &str {
        &self.names[usize::from(model.0)]
    }

    /// All models, in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = (ModelId, &str)> {
        self.names.iter().enumerate().map(|(number, name)| (ModelId(number as u8), name.as_str()))
    }

    /// Reads `A|B`: one of these models. The empty text accepts every model.
    pub fn filter(&mut self, text: &str) -> Result<ModelFilter, TooManyModels> {
        if text.is_empty() {
            return Ok(ModelFilter::any());
        }
        let mut accepted = 0;
        for name in text.split('|') {
            accepted |= 1 << self.id(name)?.0;
        }
        Ok(ModelFilter { text: text.into(), accepted })
    }
}

/// The models a request accepts. Two filters are the same if they are written the same.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ModelFilter {
    text: Arc<str>,
    accepted: u64,
}

impl ModelFilter {
    /// Every model will do.
    pub fn any() -> Self {
        Self { text: "".into(), accepted: u64::MAX }
    }

    /// The models whose bits are set.
    pub(crate) fn of_mask(accepted: u64) -> Self {
        Self { text: format!("{accepted:x}").into(), accepted }
    }

    /// Whether a GPU of this model will do.
    pub fn accepts(&self, model: ModelId) -> bool {
        self.accepted >> model.0 & 1 == 1
    }

    /// The same as only this model, or nothing if the filter does not accept it.
    pub fn only(&self, model: ModelId, models: &Models) -> Option<Self> {
        self.accepts(model).then(|| Self { text: models.name(model).into(), accepted: 1 << model.0 })
    }

    /// As it was written.
    pub fn text(&self) -> &str {
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_accepts_what_it_names() {
        let mut models = Models::default();
        let a = models.id("A").unwrap();
        let both = models.filter("B|C").unwrap();
        let (b, c) = (models.id("B").unwrap(), models.id("C").unwrap());
        assert!(both.accepts(b) && both.accepts(c) && !both.accepts(a));
        assert!(ModelFilter::any().accepts(a) && models.filter("").unwrap() == ModelFilter::any());
        assert_eq!(both.only(a, &models), None);
        assert_eq!(both.only(b, &models), Some(models.filter("B").unwrap()));
    }

    #[test]
    fn a_model_too_many_is_refused() {
        let mut models = Models::default();
        for number in 0..MODELS_MAX {
            models.id(&number.to_string()).unwrap();
        }
        assert_eq!(models.id("one more"), Err(TooManyModels { name: "one more".into() }));
        assert!(models.id("0").is_ok());
    }
}
