//! Enums whose variants are words of a table.

/// Declares an enum with the word of each variant. `parse` lists all words when it meets one that is not among them.
macro_rules! words {
    ($(#[$docs:meta])* $name:ident, $what:literal { $($(#[$variant_docs:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_docs])* $variant,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: &[$name] = &[$($name::$variant),+];

            /// The word in the table.
            pub fn word(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)+
                }
            }

            /// The variant of a word.
            ///
            /// # Errors
            /// The word means nothing.
            pub fn parse(word: &str) -> Result<$name, String> {
                match word {
                    $($word => Ok($name::$variant),)+
                    _ => {
                        let known = [$($word),+].join(", ");
                        Err(format!("unknown {} {word:?}; expected one of: {known}", $what))
                    }
                }
            }
        }
    };
}
pub(crate) use words;
