//! Text to tokens. Linear in the text, and every token remembers its line.

use std::collections::HashMap;

use crate::error::{PtxError, Result};

/// An interned string of one module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Sym(pub(crate) u32);

/// The strings behind [`Sym`]s.
#[derive(Clone, Debug, Default)]
pub(crate) struct Interner {
    by_text: HashMap<Box<str>, Sym>,
    texts: Vec<Box<str>>,
}

impl Interner {
    /// The symbol of `text`.
    pub(crate) fn intern(&mut self, text: &str) -> Sym {
        if let Some(&sym) = self.by_text.get(text) {
            return sym;
        }
        let sym = Sym(u32::try_from(self.texts.len()).unwrap_or(u32::MAX));
        self.texts.push(text.into());
        self.by_text.insert(text.into(), sym);
        sym
    }

    /// The text of `sym`.
    pub(crate) fn text(&self, sym: Sym) -> &str {
        self.texts.get(sym.0 as usize).map_or("", |text| text)
    }
}

/// What a token is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    /// A name, including `%register` and `$label`.
    Ident(Sym),
    /// `.name`, without the dot.
    Dot(Sym),
    /// An integer literal.
    Int(u64),
    /// `0f…`, as bits.
    F32(u32),
    /// `0d…` or a decimal fraction, as bits.
    F64(u64),
    /// A string literal.
    Str,
    /// Any other character.
    Punct(u8),
    /// The end; stays at the end.
    End,
}

/// One token.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) line: u32,
}

fn is_name_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%')
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'%')
}

struct Lexer<'t> {
    text: &'t [u8],
    at: usize,
    line: u32,
}

impl Lexer<'_> {
    fn peek(&self, ahead: usize) -> u8 {
        self.text.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn error(&self, reason: &str) -> PtxError {
        let end = (self.at + 20).min(self.text.len());
        let near = String::from_utf8_lossy(&self.text[self.at.min(end)..end]).into_owned();
        PtxError::new(self.line, near.lines().next().unwrap_or("").to_owned(), reason)
    }

    /// Skips blanks and comments.
    fn skip(&mut self) -> Result<()> {
        while self.at < self.text.len() {
            match self.peek(0) {
                b'\n' => {
                    self.line += 1;
                    self.at += 1;
                }
                byte if byte.is_ascii_whitespace() => self.at += 1,
                b'/' if self.peek(1) == b'/' => {
                    while self.at < self.text.len() && self.peek(0) != b'\n' {
                        self.at += 1;
                    }
                }
                b'/' if self.peek(1) == b'*' => {
                    self.at += 2;
                    while !(self.peek(0) == b'*' && self.peek(1) == b'/') {
                        if self.at >= self.text.len() {
                            return Err(self.error("a comment that does not end"));
                        }
                        self.line += u32::from(self.peek(0) == b'\n');
                        self.at += 1;
                    }
                    self.at += 2;
                }
                _ => break,
            }
        }
        Ok(())
    }

    fn name(&mut self, allow_colons: bool) -> &str {
        let start = self.at;
        loop {
            if is_name(self.peek(0)) {
                self.at += 1;
            } else if allow_colons && self.peek(0) == b':' && self.peek(1) == b':' && is_name(self.peek(2)) {
                self.at += 2;
            } else {
                break;
            }
        }
        std::str::from_utf8(&self.text[start..self.at]).unwrap_or("")
    }

    fn hex_float(&mut self, digits: usize) -> Option<u64> {
        let text = self.text.get(self.at + 2..self.at + 2 + digits)?;
        let text = std::str::from_utf8(text).ok()?;
        if !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let bits = u64::from_str_radix(text, 16).ok()?;
        self.at += 2 + digits;
        Some(bits)
    }

    fn number(&mut self) -> Result<Kind> {
        if self.peek(0) == b'0' {
            match self.peek(1) {
                b'f' | b'F' => {
                    if let Some(bits) = self.hex_float(8) {
                        return Ok(Kind::F32(bits as u32));
                    }
                }
                b'd' | b'D' => {
                    if let Some(bits) = self.hex_float(16) {
                        return Ok(Kind::F64(bits));
                    }
                }
                _ => {}
            }
        }
        let start = self.at;
        let radix = match (self.peek(0), self.peek(1)) {
            (b'0', b'x' | b'X') => 16,
            (b'0', b'b' | b'B') => 2,
            (b'0', b'0'..=b'7') => 8,
            _ => 10,
        };
        if radix == 16 || radix == 2 {
            self.at += 2;
        }
        let digits = self.at;
        while char::from(self.peek(0)).is_digit(radix.max(10)) {
            self.at += 1;
        }
        let is_fraction = radix == 10 || radix == 8;
        if is_fraction
            && (self.peek(0) == b'.' && self.peek(1).is_ascii_digit()
                || matches!(self.peek(0), b'e' | b'E')
                    && (self.peek(1).is_ascii_digit()
                        || matches!(self.peek(1), b'+' | b'-') && self.peek(2).is_ascii_digit()))
        {
            while self.peek(0).is_ascii_digit()
                || matches!(self.peek(0), b'.' | b'e' | b'E')
                || matches!(self.peek(0), b'+' | b'-') && matches!(self.text[self.at - 1], b'e' | b'E')
            {
                self.at += 1;
            }
            let text = String::from_utf8_lossy(&self.text[start..self.at]).into_owned();
            let value: f64 = text.parse().map_err(|_| self.error("a malformed fraction"))?;
            return Ok(Kind::F64(value.to_bits()));
        }
        let text = String::from_utf8_lossy(&self.text[digits..self.at]).into_owned();
        let value =
            u64::from_str_radix(&text, radix).map_err(|_| self.error("a malformed or too large integer"))?;
        if matches!(self.peek(0), b'U' | b'u') {
            self.at += 1;
        }
        Ok(Kind::Int(value))
    }

    fn string(&mut self) -> Result<()> {
        self.at += 1;
        while self.peek(0) != b'"' {
            if self.at >= self.text.len() {
                return Err(self.error("a string that does not end"));
            }
            self.line += u32::from(self.peek(0) == b'\n');
            self.at += 1 + usize::from(self.peek(0) == b'\\');
        }
        self.at += 1;
        Ok(())
    }
}

/// All tokens of `text`, with one [`Kind::End`] at the end. A NUL byte ends the text, as the driver sees it.
pub(crate) fn tokens(text: &[u8], names: &mut Interner) -> Result<Vec<Token>> {
    let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
    let mut lexer = Lexer { text: &text[..end], at: 0, line: 1 };
    let mut out = Vec::new();
    loop {
        lexer.skip()?;
        let line = lexer.line;
        if lexer.at >= lexer.text.len() {
            out.push(Token { kind: Kind::End, line });
            return Ok(out);
        }
        let kind = match lexer.peek(0) {
            byte if is_name_start(byte) => Kind::Ident(names.intern(lexer.name(false))),
            b'.' if is_name(lexer.peek(1)) => {
                lexer.at += 1;
                Kind::Dot(names.intern(lexer.name(true)))
            }
            byte if byte.is_ascii_digit() => lexer.number()?,
            b'"' => {
                lexer.string()?;
                Kind::Str
            }
            byte if byte.is_ascii_graphic() => {
                lexer.at += 1;
                Kind::Punct(byte)
            }
            _ => return Err(lexer.error("a character that PTX does not know")),
        };
        out.push(Token { kind, line });
    }
}
