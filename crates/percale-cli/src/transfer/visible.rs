//! Makes text of the other side safe to print: it cannot move the cursor, change colors, or hide or reorder other text.

/// The maximum number of characters in the result.
const LONGEST: usize = 2048;

/// Returns the text, truncated after 2048 characters. All characters except printable ones and spaces are escaped.
pub(crate) fn line(text: &str) -> String {
    escaped(text, |_| false)
}

/// Like [`line`], but keeps line breaks.
pub(crate) fn lines(text: &str) -> String {
    escaped(text, |character| character == '\n')
}

fn escaped(text: &str, keep: impl Fn(char) -> bool) -> String {
    let mut shown = String::with_capacity(text.len().min(LONGEST));
    for (count, character) in text.chars().enumerate() {
        if count == LONGEST {
            shown.push_str("...");
            break;
        }
        if is_hidden(character) && !keep(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Returns whether a character is a control character, or has an effect on a terminal without being displayed:
/// direction, joining, tags.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(line("no \u{1b}[2J\u{9b}8m\u{202e}\r\n!"), "no \\u{1b}[2J\\u{9b}8m\\u{202e}\\u{d}\\u{a}!");
        assert_eq!(lines("a\nb\u{7}"), "a\nb\\u{7}");
        assert_eq!(line("\u{e9}t\u{e9} \u{65e5}\u{672c}"), "\u{e9}t\u{e9} \u{65e5}\u{672c}");
        assert!(line(&"\u{1b}".repeat(1 << 20)).len() < 16 << 10);
    }
}
