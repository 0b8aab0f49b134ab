//! Reads the declarations of a Go file. Bodies of functions and values of variables are passed over: they hold no types.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Result, anyhow, bail};

use super::lexer::{self, Token, TokenKind, Tokens};
use super::package::Location;
use super::registration::{self, Registration};
use super::{FieldDecl, Markers, StructTag, TypeDecl, TypeExpr};

/// The declarations of a file.
#[derive(Debug, Default)]
pub(super) struct GoFile {
    /// A build without tags takes the file.
    pub(super) is_built: bool,
    /// The markers above the package clause, wherever they stand.
    pub(super) markers: Markers,
    /// The names under which the file imports packages, with their paths.
    pub(super) imports: BTreeMap<String, String>,
    /// Constants that are strings.
    pub(super) constants: BTreeMap<String, String>,
    pub(super) types: Vec<TypeDecl>,
    /// The types that have a method of this name.
    pub(super) json_encoders: Vec<String>,
    pub(super) registrations: Vec<Registration>,
}

/// Reads a file. `path` is for messages.
pub(super) fn parse(path: &Path, source: &str) -> Result<GoFile> {
    let tokens = lexer::tokenize(source).map_err(|e| anyhow!("{}:{}: {}", path.display(), e.line, e.problem))?;
    let registrations = registration::find(path, &tokens.tokens)?;
    let mut parser = Parser { path, tokens: &tokens, next: 0, file: GoFile { registrations, ..GoFile::default() } };
    while parser.peek().is_some() {
        parser.declaration()?;
    }
    Ok(parser.file)
}

struct Parser<'a> {
    path: &'a Path,
    tokens: &'a Tokens,
    next: usize,
    file: GoFile,
}

impl<'a> Parser<'a> {
    fn declaration(&mut self) -> Result<()> {
        match self.word()?.as_str() {
            "package" => {
                let above = self.tokens.comments.range(..self.line()).map(|(_, text)| text.as_str());
                self.file.markers = Markers::of(above.clone());
                let constraint = above.filter_map(|text| text.strip_prefix("go:build ")).next();
                self.file.is_built = self.is_built(constraint)?;
                self.word()?;
                self.expect(';')
            }
            "import" => self.group(Self::import),
            "const" => self.group(Self::constant),
            "var" => self.group(Self::pass_statement),
            "type" => self.group(Self::type_spec),
            "func" => self.function(),
            other => bail!("{}: a declaration that begins with `{other}`", self.here()),
        }
    }

    /// Whether a build without tags, with the newest Go, takes the file.
    fn is_built(&self, constraint: Option<&str>) -> Result<bool> {
        let Some(constraint) = constraint.map(str::trim) else { return Ok(true) };
        let tag = constraint.trim_start_matches('!');
        if tag.is_empty() || tag.contains(|c: char| !c.is_alphanumeric() && c != '_' && c != '.') {
            bail!("{}: the build constraint `{constraint}` is not understood", self.here());
        }
        Ok(constraint.starts_with('!') != tag.starts_with("go1."))
    }

    /// One spec, or several in parentheses.
    fn group(&mut self, spec: fn(&mut Self) -> Result<()>) -> Result<()> {
        if !self.take('(') {
            return spec(self);
        }
        while !self.take(')') {
            spec(self)?;
        }
        self.expect(';')
    }

    fn import(&mut self) -> Result<()> {
        let name = if matches!(self.kind(), Some(TokenKind::Word(_))) {
            Some(self.word()?)
        } else if self.take('.') {
            bail!("{}: an import into the package's own names", self.here());
        } else {
            None
        };
        let Some(TokenKind::Text(path)) = self.kind().cloned() else { bail!("{}: not an import", self.here()) };
        self.next += 1;
        let name = name.unwrap_or_else(|| path.rsplit('/').next().unwrap_or(&path).to_owned());
        self.file.imports.insert(name, path);
        self.expect(';')
    }

    /// `NAME [TYPE] = "text"`, or `NAME [TYPE] = TYPE("text")`; other constants are passed over.
    fn constant(&mut self) -> Result<()> {
        let start = self.next;
        self.pass_statement()?;
        let words: Vec<&TokenKind> = self.tokens.tokens[start..self.next].iter().map(|token| &token.kind).collect();
        let texts: Vec<&String> =
            words.iter().filter_map(|kind| if let TokenKind::Text(text) = kind { Some(text) } else { None }).collect();
        if let ([TokenKind::Word(name), ..], [text]) = (words.as_slice(), texts.as_slice()) {
            let operators = words.iter().filter(|kind| matches!(kind, TokenKind::Symbol('+'))).count();
            if operators == 0 {
                self.file.constants.insert(name.clone(), (*text).clone());
            }
        }
        Ok(())
    }

    /// Notes the receiver of `MarshalJSON` and passes over the rest.
    fn function(&mut self) -> Result<()> {
        let start = self.next;
        self.pass_statement()?;
        let head: Vec<&TokenKind> = self.tokens.tokens[start..self.next].iter().map(|token| &token.kind).collect();
        if head.first() != Some(&&TokenKind::Symbol('(')) {
            return Ok(());
        }
        let close = head.iter().position(|kind| **kind == TokenKind::Symbol(')')).unwrap_or(0);
        if let (Some(TokenKind::Word(method)), Some(TokenKind::Word(receiver))) =
            (head.get(close + 1), head.get(close.wrapping_sub(1)))
            && (method == "MarshalJSON" || method == "UnmarshalJSON")
        {
            self.file.json_encoders.push(receiver.clone());
        }
        Ok(())
    }

    fn type_spec(&mut self) -> Result<()> {
        let location = self.here();
        let markers = self.markers_of_type();
        let name = self.word()?;
        let is_alias = self.take('=');
        let definition = self.type_expr()?;
        self.expect(';')?;
        self.file.types.push(TypeDecl { name, location, markers, definition, is_alias });
        Ok(())
    }

    /// The comment of a type stands above the word `type`, or above its name inside a group.
    fn markers_of_type(&self) -> Markers {
        Markers::before(self.line(), &self.tokens.comments)
    }

    fn type_expr(&mut self) -> Result<TypeExpr> {
        if self.take('*') {
            return Ok(TypeExpr::Pointer(Box::new(self.type_expr()?)));
        }
        if self.take('[') {
            if self.take(']') {
                return Ok(TypeExpr::Slice(Box::new(self.type_expr()?)));
            }
            return self.pass_type("an array or a generic type");
        }
        if self.kind() == Some(&TokenKind::Symbol('(')) || self.kind() == Some(&TokenKind::Symbol('<')) {
            return self.pass_type("a type in parentheses or a channel");
        }
        let word = self.word()?;
        match word.as_str() {
            "map" => {
                self.expect('[')?;
                let key = self.type_expr()?;
                self.expect(']')?;
                Ok(TypeExpr::Map(Box::new(key), Box::new(self.type_expr()?)))
            }
            "struct" => self.struct_fields(),
            "interface" => self.pass_type("an interface"),
            "func" => self.pass_type("a function"),
            "chan" => self.pass_type("a channel"),
            _ => self.named_type(word),
        }
    }

    fn named_type(&mut self, word: String) -> Result<TypeExpr> {
        let (package, name) = if self.take('.') { (Some(word), self.word()?) } else { (None, word) };
        if self.kind() == Some(&TokenKind::Symbol('[')) {
            return self.pass_type("a generic type");
        }
        Ok(TypeExpr::Name { package, name })
    }

    fn struct_fields(&mut self) -> Result<TypeExpr> {
        self.expect('{')?;
        let mut fields = Vec::new();
        while !self.take('}') {
            self.field(&mut fields)?;
        }
        Ok(TypeExpr::Struct(fields))
    }

    /// `NAME, NAME TYPE TAG`, or `TYPE TAG` for an embedded field.
    fn field(&mut self, fields: &mut Vec<FieldDecl>) -> Result<()> {
        let location = self.here();
        let markers = Markers::before(self.line(), &self.tokens.comments);
        let mut names = Vec::new();
        if !self.is_embedded_field() {
            names.push(Some(self.word()?));
            while self.take(',') {
                names.push(Some(self.word()?));
            }
        } else {
            names.push(None);
        }
        let expr = self.type_expr()?;
        let tag = match self.kind().cloned() {
            Some(TokenKind::Text(text)) => {
                self.next += 1;
                StructTag::parse(&text).map_err(|problem| anyhow!("{location}: struct tag: {problem}"))?
            }
            _ => StructTag::default(),
        };
        if self.kind() != Some(&TokenKind::Symbol('}')) {
            self.expect(';')?;
        }
        fields.extend(names.into_iter().map(|name| FieldDecl {
            name,
            location: location.clone(),
            markers: markers.clone(),
            expr: expr.clone(),
            tag: tag.clone(),
        }));
        Ok(())
    }

    /// `T`, `*T` and `package.T` are embedded; `name T` is not.
    fn is_embedded_field(&self) -> bool {
        if self.kind() == Some(&TokenKind::Symbol('*')) {
            return true;
        }
        match self.tokens.tokens.get(self.next + 1).map(|token| &token.kind) {
            Some(TokenKind::Symbol('.' | ';' | '}')) | Some(TokenKind::Text(_)) | None => true,
            Some(_) => false,
        }
    }

    /// Passes over a type that no API type may use, up to its tag or the end of its line.
    fn pass_type(&mut self, what: &'static str) -> Result<TypeExpr> {
        let mut depth = 0usize;
        while let Some(kind) = self.kind() {
            match kind {
                TokenKind::Symbol(';' | '}') | TokenKind::Text(_) if depth == 0 => return Ok(TypeExpr::Other(what)),
                TokenKind::Symbol('(' | '[' | '{') => depth += 1,
                TokenKind::Symbol(')' | ']' | '}') => depth = depth.saturating_sub(1),
                _ => {}
            }
            self.next += 1;
        }
        bail!("{}: the file ends within {what}", self.here())
    }

    /// Passes over everything up to and including the semicolon that ends the statement.
    fn pass_statement(&mut self) -> Result<()> {
        let start = self.here();
        let mut depth = 0usize;
        while let Some(kind) = self.kind() {
            self.next += 1;
            match kind {
                TokenKind::Symbol(';') if depth == 0 => return Ok(()),
                TokenKind::Symbol('(' | '[' | '{') => depth += 1,
                TokenKind::Symbol(')' | ']' | '}') => {
                    depth = depth.checked_sub(1).ok_or_else(|| anyhow!("{start}: brackets do not match"))?;
                }
                _ => {}
            }
        }
        bail!("{start}: a declaration without its end")
    }

    fn peek(&self) -> Option<&'a Token> {
        self.tokens.tokens.get(self.next)
    }

    fn kind(&self) -> Option<&'a TokenKind> {
        self.peek().map(|token| &token.kind)
    }

    fn take(&mut self, symbol: char) -> bool {
        let found = self.kind() == Some(&TokenKind::Symbol(symbol));
        self.next += usize::from(found);
        found
    }

    fn expect(&mut self, symbol: char) -> Result<()> {
        if self.take(symbol) {
            return Ok(());
        }
        bail!("{}: `{symbol}` expected, {:?} found", self.here(), self.kind())
    }

    fn word(&mut self) -> Result<String> {
        match self.kind() {
            Some(TokenKind::Word(word)) => {
                self.next += 1;
                Ok(word.clone())
            }
            other => bail!("{}: a name expected, {other:?} found", self.here()),
        }
    }

    fn line(&self) -> usize {
        self.peek().or(self.tokens.tokens.last()).map_or(1, |token| token.line)
    }

    fn here(&self) -> Location {
        Location { path: self.path.to_owned(), line: self.line() }
    }
}
