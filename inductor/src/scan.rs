//! Tokens of a line of generated Python.

/// Returns the names in an expression, in order: identifiers, except after a dot, without numbers and quoted text.
pub(crate) fn names(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text;
    let mut before = None;
    std::iter::from_fn(move || {
        loop {
            let mut chars = rest.char_indices();
            let (_, first) = chars.next()?;
            if first == '\'' || first == '"' {
                let quoted = &rest[1..];
                rest = quoted.find(first).map_or("", |end| &quoted[end + 1..]);
                before = Some(first);
                continue;
            }
            let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            if !is_part(first) {
                before = Some(first);
                rest = chars.as_str();
                continue;
            }
            let end = rest.find(|letter| !is_part(letter)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            rest = after;
            let is_attribute = before.replace(first) == Some('.');
            if !is_attribute && !first.is_ascii_digit() {
                return Some(word);
            }
        }
    })
}

/// Splits at commas outside brackets, up to the bracket that closes the one opened before `text`.
pub(crate) fn arguments(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        let mut depth = 0_usize;
        let mut quote = None;
        for (at, letter) in text.char_indices() {
            match (quote, letter) {
                (Some(open), _) if letter == open => quote = None,
                (Some(_), _) => {}
                (None, '\'' | '"') => quote = Some(letter),
                (None, '(' | '[' | '{') => depth += 1,
                (None, ')' | ']' | '}') if depth == 0 => {
                    return Some(text[..at].trim()).filter(|last| !last.is_empty());
                }
                (None, ')' | ']' | '}') => depth -= 1,
                (None, ',') if depth == 0 => {
                    rest = Some(&text[at + 1..]);
                    return Some(text[..at].trim());
                }
                _ => {}
            }
        }
        Some(text.trim()).filter(|last| !last.is_empty())
    })
}

/// Splits an assignment into target and expression.
pub(crate) fn assignment(text: &str) -> Option<(&str, &str)> {
    let (target, value) = text.split_once(" = ")?;
    let is_name =
        |part: &str| !part.is_empty() && part.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_');
    target.split(',').map(str::trim).filter(|part| !part.is_empty()).all(is_name).then_some((target, value))
}

/// Returns the number at the end of a name such as `buf12` or `primals_3`.
pub(crate) fn number(name: &str, prefix: &str) -> Option<usize> {
    name.strip_prefix(prefix)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_arguments_of_a_line() {
        let line = "extern_kernels.mm(reinterpret_tensor(buf1, (8, s0), (1, 8), 0), x_2, 'buf9', out=buf3)";
        let found: Vec<_> = names(line).collect();
        assert_eq!(found, ["extern_kernels", "reinterpret_tensor", "buf1", "s0", "x_2", "out", "buf3"]);
        let inner = &line["extern_kernels.mm(".len()..];
        let found: Vec<_> = arguments(inner).collect();
        assert_eq!(found, ["reinterpret_tensor(buf1, (8, s0), (1, 8), 0)", "x_2", "'buf9'", "out=buf3"]);
        assert_eq!(arguments("buf1, None, )").collect::<Vec<_>>(), ["buf1", "None"]);
        assert_eq!(assignment("buf1 = buf0; del buf0  # reuse"), Some(("buf1", "buf0; del buf0  # reuse")));
        assert_eq!(assignment("f(x, y = 3)"), None);
        assert_eq!(number("buf12", "buf"), Some(12));
    }
}
