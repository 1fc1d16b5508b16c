//! From a type of the HTTP API to the type that is stored, and back.

use pool_api::{GpuId, LeaseId, Model, Name};
use std::collections::BTreeMap;

/// A stored type and the HTTP type `A` whose values it keeps.
pub(crate) trait Stored<A>: Sized {
    /// As it is stored.
    fn of(api: &A) -> Self;
    /// As the ledger works with it.
    fn into_api(self) -> A;
}

/// Types that are spelled in one way everywhere: numbers, texts, and identifiers that check themselves.
macro_rules! stored_as_they_are {
    ($($type:ty),*) => {
        $(impl Stored<$type> for $type {
            fn of(api: &$type) -> Self {
                api.clone()
            }

            fn into_api(self) -> $type {
                self
            }
        })*
    };
}

stored_as_they_are!(bool, u8, u16, u32, u64, String, Name, Model, GpuId, LeaseId);

impl<A, S: Stored<A>> Stored<Option<A>> for Option<S> {
    fn of(api: &Option<A>) -> Self {
        api.as_ref().map(S::of)
    }

    fn into_api(self) -> Option<A> {
        self.map(S::into_api)
    }
}

impl<A, S: Stored<A>> Stored<Vec<A>> for Vec<S> {
    fn of(api: &Vec<A>) -> Self {
        api.iter().map(S::of).collect()
    }

    fn into_api(self) -> Vec<A> {
        self.into_iter().map(S::into_api).collect()
    }
}

impl<K: Clone + Ord, A, S: Stored<A>> Stored<BTreeMap<K, A>> for BTreeMap<K, S> {
    fn of(api: &BTreeMap<K, A>) -> Self {
        api.iter().map(|(key, value)| (key.clone(), S::of(value))).collect()
    }

    fn into_api(self) -> BTreeMap<K, A> {
        self.into_iter().map(|(key, value)| (key, value.into_api())).collect()
    }
}

/// A stored struct with the fields of an HTTP type, except those that are listed after `without` and the value they
/// have when they are read.
///
/// Both conversions name every field of the HTTP type, so they stop compiling when it gets one more.
macro_rules! stored_struct {
    ($(#[$about:meta])* $name:ident of $api:ident {
        $($(#[$attribute:meta])* $field:ident: $type:ty,)*
    } $(without { $($left:ident: $absent:expr),* })?) => {
        $(#[$about])*
        #[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
        pub(crate) struct $name {
            $($(#[$attribute])* $field: $type,)*
        }

        impl $crate::records::Stored<pool_api::$api> for $name {
            fn of(api: &pool_api::$api) -> Self {
                let pool_api::$api { $($field,)* $($($left: _,)*)? } = api;
                Self { $($field: $crate::records::Stored::of($field),)* }
            }

            fn into_api(self) -> pool_api::$api {
                let Self { $($field,)* } = self;
                pool_api::$api {
                    $($field: $crate::records::Stored::into_api($field),)*
                    $($($left: $absent,)*)?
                }
            }
        }

        #[cfg(test)]
        impl $name {
            /// Its fields with their types, as they are written above.
            pub(in crate::records) const SHAPE: &'static str = concat!(
                stringify!($name), " {\n", $("    ", stringify!($field), ": ", stringify!($type), ",\n",)* "}\n"
            );
        }
    };
}

/// A stored enumeration with the words of an HTTP type.
macro_rules! stored_enum {
    ($(#[$about:meta])* $name:ident of $api:ident { $($word:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub(crate) enum $name {
            $($word,)*
        }

        impl $crate::records::Stored<pool_api::$api> for $name {
            fn of(api: &pool_api::$api) -> Self {
                match api {
                    $(pool_api::$api::$word => Self::$word,)*
                }
            }

            fn into_api(self) -> pool_api::$api {
                match self {
                    $(Self::$word => pool_api::$api::$word,)*
                }
            }
        }

        #[cfg(test)]
        impl $name {
            /// Its words.
            pub(in crate::records) const SHAPE: &'static str = concat!(
                stringify!($name), " = ", $(stringify!($word), " ",)* "\n"
            );
            /// Every value, as the ledger works with it.
            #[allow(dead_code, reason = "the samples use those of long enumerations")]
            pub(in crate::records) const ALL: &'static [pool_api::$api] = &[$(pool_api::$api::$word,)*];
        }
    };
}

pub(super) use {stored_enum, stored_struct};
