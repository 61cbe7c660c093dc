//! Qualified names of functions, from a file and a line.

use memlab_inductor::Definitions;
use proptest::prelude::*;

/// Returns the qualified name at the line that contains `marker`.
fn at(source: &str, marker: &str, function: &str) -> Option<String> {
    let line = (1..).zip(source.lines()).find(|(_, text)| text.contains(marker)).map(|(line, _)| line);
    Definitions::parse(source).qualified_name(line.expect("the marker is in the source"), function)
}

#[test]
fn given_methods_and_nested_functions_when_asked_for_their_lines_then_names_are_those_of_python() {
    let source = "
import torch

class Block(nn.Module):
    scale = make(1)

    @torch.no_grad()
    def forward(self, x):
        def inner(y):
            return y + 1  # inner

        async def later(y): return y * 2  # one line

        class Local:
            async  def method(self):
                pass  # method
        return inner(x)  # after

    class Part:
        if torch.cuda:
            def run(self):
                pass  # run

def main():
    Block()  # main
";
    assert_eq!(at(source, "# inner", "inner").as_deref(), Some("Block.forward.<locals>.inner"));
    assert_eq!(at(source, "# one line", "later").as_deref(), Some("Block.forward.<locals>.later"));
    assert_eq!(at(source, "# method", "method").as_deref(), Some("Block.forward.<locals>.Local.method"));
    assert_eq!(at(source, "# after", "forward").as_deref(), Some("Block.forward"));
    assert_eq!(at(source, "# run", "run").as_deref(), Some("Block.Part.run"));
    assert_eq!(at(source, "# main", "main").as_deref(), Some("main"));
}

#[test]
fn given_a_line_of_another_function_or_of_none_when_asked_then_there_is_no_name() {
    let source = "
x = 1  # module
class Block:
    y = 2  # class
    def forward(self):
        return 1  # body
";
    assert_eq!(at(source, "# module", "forward"), None);
    assert_eq!(at(source, "# class", "forward"), None);
    assert_eq!(at(source, "# class", "Block"), None);
    assert_eq!(at(source, "# body", "backward"), None);
    let definitions = Definitions::parse(source);
    assert_eq!(definitions.qualified_name(0, "forward"), None);
    assert_eq!(definitions.qualified_name(1000, "forward"), None);
    assert_eq!(Definitions::parse("").qualified_name(1, "forward"), None);
}

#[test]
fn given_a_header_of_several_lines_when_a_default_is_asked_for_then_it_belongs_to_the_function_around() {
    let source = "
def outer():
    def inner(
        x,
        y=make(),  # default
    ):
        return x  # body
    class Local(
        base(),  # base
    ):
        pass
";
    assert_eq!(at(source, "# default", "outer").as_deref(), Some("outer"));
    assert_eq!(at(source, "# base", "outer").as_deref(), Some("outer"));
    assert_eq!(at(source, "# body", "inner").as_deref(), Some("outer.<locals>.inner"));
    assert_eq!(at(source, "# body", "outer"), None);
}

#[test]
fn given_strings_and_comments_with_code_in_them_when_parsed_then_they_define_nothing() {
    let source = r##"
class Block:
    """
def fake():
    It's a "string" \""" still (
    """
    def forward(self, x):
        text = 'def no(): \' ( \
def neither():'
# class Fake: (
        text = r"\"(" + f'''
class Fake: {x["a"]} '
'''
        return (
x +  # continued
    1)  # end
    def after(self):
        return x + \
1  # joined
"##;
    assert_eq!(at(source, "# continued", "forward").as_deref(), Some("Block.forward"));
    assert_eq!(at(source, "# end", "forward").as_deref(), Some("Block.forward"));
    assert_eq!(at(source, "# joined", "after").as_deref(), Some("Block.after"));
    assert_eq!(at(source, "It's", "fake"), None);
    assert_eq!(at(source, "class Fake: {", "forward").as_deref(), Some("Block.forward"));
}

#[test]
fn given_tabs_generics_and_names_in_other_scripts_when_parsed_then_they_are_understood() {
    let source = "class Größe[T](Base):\n\tdef länge[U](self):\n\t\treturn 1  # tab\n        def spaces(self):\n\t    pass  # mixed\n";
    assert_eq!(at(source, "# tab", "länge").as_deref(), Some("Größe.länge"));
    assert_eq!(at(source, "# mixed", "spaces").as_deref(), Some("Größe.spaces"));
    let names_like_keywords = "def outer():\n    classes = 1\n    define(2)\n    async_def = 3\n    return 1  # end\n";
    assert_eq!(at(names_like_keywords, "# end", "outer").as_deref(), Some("outer"));
}

#[test]
fn given_quotes_in_quotes_that_are_misread_when_a_definition_follows_then_it_is_found() {
    let source = "
def first(x):
    return f\"{x[\"it's\"]( }\"
def second(x):
    return x  # second
";
    assert_eq!(at(source, "# second", "second").as_deref(), Some("second"));
}

proptest! {
    #[test]
    fn given_any_lines_when_parsed_then_names_end_in_the_function_asked_for(
        lines in prop::collection::vec(
            ("[ \t]{0,6}", prop::sample::select(vec![
                "def f(x):", "class A:", "async def f():", "'''", "\"", "(", ")", "\\", "# def f():", "x = 1", "", "\u{e9}\\'",
                "def f(x, ", "'def f():'", "\\\"\"\"",
            ])),
            0..60,
        )
    ) {
        let source: String = lines.iter().map(|(space, code)| format!("{space}{code}\n")).collect();
        let definitions = Definitions::parse(&source);
        for line in 0..=lines.len() as u32 + 1 {
            if let Some(name) = definitions.qualified_name(line, "f") {
                prop_assert!(name == "f" || name.ends_with(".f"));
                prop_assert!(line >= 1 && line <= lines.len() as u32);
            }
        }
    }

    #[test]
    fn given_any_text_when_parsed_then_nothing_breaks(source in ".*(\n.*){0,8}", line in 0..12_u32) {
        Definitions::parse(&source).qualified_name(line, "f");
    }
}
