//! File names of code objects: IPython cells, generated code, and relative paths.

/// The notebook's name for a cell that IPython numbers itself: `<ipython-input-3-0a1b2c>` is `In[3]`.
pub fn numbered_cell(file: &str) -> Option<String> {
    let name = file.rsplit('/').next()?;
    let rest = name.strip_prefix('<').unwrap_or(name).strip_prefix("ipython-input-")?;
    let (number, _) = rest.split_once('-')?;
    let number: u32 = number.parse().ok()?;
    Some(format!("In[{number}]"))
}

/// Returns the name with each number replaced by `#`: `<eval_with_key>.#`.
pub fn without_numbers(file: &str) -> String {
    let mut name = String::with_capacity(file.len());
    for letter in file.chars() {
        match letter {
            '0'..='9' if name.ends_with('#') => {}
            '0'..='9' => name.push('#'),
            _ => name.push(letter),
        }
    }
    name
}

/// Returns true if only IPython can map this file to its cell: `/tmp/ipykernel_12/345.py`, `<timed exec>`.
pub fn is_cell(file: &str) -> bool {
    file.contains("/ipykernel_")
        || file.contains("/ipython-input-")
        || file.starts_with("<timed e")
        || file == "<magic-timeit>"
}

/// Returns true for a file of an installed package or of Python's standard library.
pub fn is_library(file: &str) -> bool {
    file.split('/').any(|part| is_packages(part) || part.starts_with("python3."))
}

/// Returns true for a file of an installed package.
pub fn is_installed(file: &str) -> bool {
    file.split('/').any(is_packages)
}

/// True for the folder that contains installed packages.
fn is_packages(part: &str) -> bool {
    part == "site-packages" || part == "dist-packages"
}

/// Makes a file name absolute: `co_filename` may be relative to the directory in which the program was started.
pub fn absolute(file: String) -> String {
    if file.starts_with('/') || file.starts_with('<') {
        return file;
    }
    match std::env::current_dir() {
        Ok(directory) => directory.join(&file).to_string_lossy().into_owned(),
        Err(_) => file,
    }
}
