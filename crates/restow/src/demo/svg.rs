//! A picture of what the demo printed, for the README. `restow demo --svg docs/demo.svg` makes it.

use super::styled_text::{Span, Style};

const WIDTH: usize = 860;
const LINE_HEIGHT: usize = 17;
const MARGIN_LEFT: usize = 16;
/// Where the first line stands.
const FIRST_LINE: usize = 30;
const MARGIN_BOTTOM: usize = 25;

/// Draws lines as on a dark terminal.
pub(super) fn draw(lines: &[Vec<Span>]) -> String {
    let last = FIRST_LINE + LINE_HEIGHT * lines.len().saturating_sub(1);
    let height = last + MARGIN_BOTTOM;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         font-family=\"ui-monospace,Menlo,Consolas,monospace\" font-size=\"13\" fill=\"#d7dae0\" role=\"img\" \
         aria-label=\"The demo in a terminal: servers that disagree, a server that resumes too late, a custom resource that \
         is migrated\">\n<rect width=\"{WIDTH}\" height=\"{height}\" rx=\"8\" fill=\"#16181d\"/>\n"
    );
    for (number, line) in lines.iter().enumerate() {
        let y = FIRST_LINE + LINE_HEIGHT * number;
        let text: String = line.iter().map(span).collect();
        svg.push_str(&format!("<text x=\"{MARGIN_LEFT}\" y=\"{y}\" xml:space=\"preserve\">{text}</text>\n"));
    }
    svg.push_str("</svg>\n");
    svg
}

fn span(span: &Span) -> String {
    let text = span.text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let colour = match span.style {
        Style::Plain => return text,
        Style::Heading => "#7fdbca",
        Style::Checked | Style::Good => "#8be28b",
        Style::Old => "#e6c384",
        Style::Bad => "#ff8f80",
    };
    let weight = match span.style {
        Style::Heading | Style::Checked => " font-weight=\"bold\"",
        _ => "",
    };
    format!("<tspan fill=\"{colour}\"{weight}>{text}</tspan>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_drawn_below_each_other_and_escaped() {
        let svg = draw(&[vec![Span::plain("a < b "), Span::new(Style::Good, "v1")], vec![]]);
        assert!(
            svg.contains("y=\"30\" xml:space=\"preserve\">a &lt; b <tspan fill=\"#8be28b\">v1</tspan></text>"),
            "{svg}"
        );
        assert!(svg.contains("height=\"72\"") && svg.contains("y=\"47\""), "{svg}");
    }
}
