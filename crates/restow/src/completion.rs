//! `restow completion`: prints completion scripts for shells.

use clap::{Args, Command};
use clap_complete::Shell;
use std::io::Write;

/// Print a completion script for a shell.
///
/// For the current shell: `source <(restow completion bash)`. To install it, write it to:
///   bash  ~/.local/share/bash-completion/completions/restow
///   zsh   a file _restow in a folder of $fpath
///   fish  ~/.config/fish/completions/restow.fish
#[derive(Debug, Args)]
#[command(verbatim_doc_comment)]
pub(crate) struct CompletionArgs {
    /// The shell.
    shell: Shell,
}

pub(crate) fn run(args: &CompletionArgs, mut command: Command) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "restow", &mut script);
    // A closed pipe is no error.
    let _ = std::io::stdout().write_all(&script);
    Ok(())
}
