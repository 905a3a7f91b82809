/** Numbers and times as a person reads them, the same as in the terminal. */

export const UNKNOWN = "–";

/** Tells whether a value is a number that can be shown. */
export function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}

/** Gives a number with so many digits after the point; the sign is a minus, not a hyphen. */
export function number(value, digits = 3) {
  return isNumber(value) ? unsignedZero(value.toFixed(digits)).replace("-", "−") : UNKNOWN;
}

/** Gives a number with its sign, for differences and rewards. */
export function signed(value, digits = 3) {
  if (!isNumber(value)) return UNKNOWN;
  const text = unsignedZero(value.toFixed(digits));
  return text.startsWith("-") ? text.replace("-", "−") : `+${text}`;
}

/** Gives a sentence with minus signs instead of hyphens before its numbers. */
export function withMinus(text) {
  return text.replace(/(^|[\s[(])-(?=\d)/g, "$1−");
}

/** Gives the class of a difference: good above zero, bad below. */
export function tone(value) {
  return value > 0 ? "good" : value < 0 ? "bad" : "";
}

/** Gives the class of a gap with its interval: colour only outside noise. */
export function clearTone(gap) {
  return gap?.is_sure ? tone(gap.mean) : "";
}

/** Gives the interval of a gap in words, for those who ask. */
export function gapWords({ low, high, n, is_sure: isSure }) {
  const excludesZero = low > 0 || high < 0;
  const noise = isSure ? "" : excludesZero ? "; not shown after correction for all comparisons" : "; zero is within noise";
  return `95% interval ${signed(low)} to ${signed(high)}, ${many(n, "held-out host")}${noise}`;
}

/** Gives a number in about three digits, whatever its size. */
export function compact(value) {
  if (!isNumber(value)) return UNKNOWN;
  const size = Math.abs(value);
  if (size >= 1000) return count(value);
  if (size !== 0 && size < 0.001) return value.toExponential(1).replaceAll("-", "−");
  const digits = size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return number(value, digits);
}

/** Gives a number at an axis, as short as it can be. */
export function tick(value) {
  return Math.abs(value) >= 1000 ? count(value) : String(Number(value.toPrecision(6))).replace("-", "−");
}

/** Gives a size in three digits: 987, 1.23k, 45.6M. */
export function count(value) {
  if (!isNumber(value)) return UNKNOWN;
  for (const [size, letter] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (Math.abs(value) >= size) return Number((value / size).toPrecision(3)) + letter;
  }
  return String(Number(value.toPrecision(3)));
}

/** Gives the parameters of a host and, where they are known, of its seeds: 1,880 + 560. */
export function parameters(host, seeds) {
  const size = (value) => (value < 1e6 ? whole(value) : count(value));
  if (!isNumber(seeds)) return size(host);
  return `${size(host)} + ${seeds > 0 && seeds < 10 ? number(seeds, 1) : size(seeds)}`;
}

/** Gives a whole number with commas between its thousands. */
export function whole(value) {
  return isNumber(value) ? Math.round(value).toLocaleString("en") : UNKNOWN;
}

/** Gives a share in percent. */
export function percent(value, digits = 0) {
  return isNumber(value) ? `${unsignedZero((100 * value).toFixed(digits)).replace("-", "−")}%` : UNKNOWN;
}

/** Gives a probability in percent; one that is almost zero or almost one says so. */
export function probability(value) {
  if (!isNumber(value)) return UNKNOWN;
  if (value > 0 && value < 0.0005) return "< 0.1%";
  if (value < 1 && value > 0.9995) return "> 99.9%";
  return percent(value, value < 0.0995 ? 1 : 0);
}

/** Gives a number of bytes. */
export function bytes(value) {
  if (!isNumber(value)) return UNKNOWN;
  return value >= 1e9 ? `${(value / 1e9).toFixed(1)} GB` : `${(value / 1e6).toFixed(0)} MB`;
}

/** Gives a time as hours, minutes and seconds: 1:05 or 2:00:07. */
export function duration(seconds) {
  if (!isNumber(seconds)) return UNKNOWN;
  const all = Math.max(0, Math.round(seconds));
  const [hours, minutes, rest] = [Math.floor(all / 3600), Math.floor(all / 60) % 60, all % 60];
  const two = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** Gives a moment in local time, to the minute. */
export function moment(text) {
  const date = text ? new Date(text) : null;
  if (!date || Number.isNaN(date.getTime())) return UNKNOWN;
  const two = (value) => String(value).padStart(2, "0");
  const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
  return `${day} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

/** Gives a number of things: 1 round, 2 rounds. */
export function many(amount, thing) {
  return amount === 1 ? `1 ${thing}` : `${whole(amount)} ${thing}s`;
}

function unsignedZero(text) {
  return /^-0(\.0*)?$/.test(text) ? text.slice(1) : text;
}
