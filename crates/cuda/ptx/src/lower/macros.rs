//! Row functions out of scalar expressions. Cheap expressions are computed in all lanes, so that the compiler
//! makes vector code of the loop; dear ones only in the lanes that want them.

macro_rules! map1 {
    (|$a:ident| $body:expr) => {
        Box::new(move |d: &mut $crate::code::Row, a: &$crate::code::Row, _: u32| {
            for i in 0..$crate::code::LANES {
                let $a = a[i];
                d[i] = $body;
            }
        }) as $crate::code::Fn1
    };
}

macro_rules! slow1 {
    (|$a:ident| $body:expr) => {
        Box::new(move |d: &mut $crate::code::Row, a: &$crate::code::Row, mask: u32| {
            for i in $crate::code::lanes(mask) {
                let $a = a[i];
                d[i] = $body;
            }
        }) as $crate::code::Fn1
    };
}

macro_rules! map2 {
    (|$a:ident, $b:ident| $body:expr) => {
        Box::new(move |d: &mut $crate::code::Row, a: &$crate::code::Row, b: &$crate::code::Row, _: u32| {
            for i in 0..$crate::code::LANES {
                let ($a, $b) = (a[i], b[i]);
                d[i] = $body;
            }
        }) as $crate::code::Fn2
    };
}

macro_rules! slow2 {
    (|$a:ident, $b:ident| $body:expr) => {
        Box::new(move |d: &mut $crate::code::Row, a: &$crate::code::Row, b: &$crate::code::Row, mask: u32| {
            for i in $crate::code::lanes(mask) {
                let ($a, $b) = (a[i], b[i]);
                d[i] = $body;
            }
        }) as $crate::code::Fn2
    };
}

macro_rules! map3 {
    (|$a:ident, $b:ident, $c:ident| $body:expr) => {
        Box::new(
            move |d: &mut $crate::code::Row,
                  a: &$crate::code::Row,
                  b: &$crate::code::Row,
                  c: &$crate::code::Row,
                  _: u32| {
                for i in 0..$crate::code::LANES {
                    let ($a, $b, $c) = (a[i], b[i], c[i]);
                    d[i] = $body;
                }
            },
        ) as $crate::code::Fn3
    };
}

macro_rules! slow3 {
    (|$a:ident, $b:ident, $c:ident| $body:expr) => {
        Box::new(
            move |d: &mut $crate::code::Row,
                  a: &$crate::code::Row,
                  b: &$crate::code::Row,
                  c: &$crate::code::Row,
                  mask: u32| {
                for i in $crate::code::lanes(mask) {
                    let ($a, $b, $c) = (a[i], b[i], c[i]);
                    d[i] = $body;
                }
            },
        ) as $crate::code::Fn3
    };
}

macro_rules! compare {
    (|$a:ident, $b:ident| $body:expr) => {
        Box::new(move |a: &$crate::code::Row, b: &$crate::code::Row| {
            let mut mask = 0u32;
            for i in 0..$crate::code::LANES {
                let ($a, $b) = (a[i], b[i]);
                mask |= u32::from($body) << i;
            }
            mask
        }) as $crate::code::FnCmp
    };
}
