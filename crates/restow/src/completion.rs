//! `restow completion`: what a shell needs to complete our commands and flags.

use clap::{Args, Command};
use clap_complete::Shell;
use std::io::Write;

/// Print what a shell needs to complete commands and flags.
///
/// For the present shell: `source <(restow completion bash)`. To keep it, write it where the shell looks for it:
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
    // A reader that has seen enough is no error.
    let _ = std::io::stdout().write_all(&script);
    Ok(())
}
