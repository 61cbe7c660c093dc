// A size: three significant digits and the unit, as everywhere in memlab.
function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let unit = 0;
  while (bytes >= 1023.5 && unit < 6) {
    bytes /= 1024;
    unit += 1;
  }
  const digits = unit === 0 ? 0 : bytes < 9.995 ? 2 : bytes < 99.95 ? 1 : 0;
  return `${bytes.toFixed(digits)} ${units[unit]}`;
}
