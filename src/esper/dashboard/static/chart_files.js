/** Charts as files: a picture with its title and legend, or the numbers. */

import { shownTheme } from "./theme.js";

const COLOURS = { light: ["#ffffff", "#1b1d20", "#595e64"], dark: ["#1a1c1f", "#e7e9eb", "#a3a9b0"] };
const MARGIN = 16;
const HEAD = 34;
const LINE = 22;
const FONT = "system-ui, sans-serif";

/** Saves a drawing as name.png; series has { label, colour } of the lines in it. */
export function savePng(name, { title, note, canvas, series }) {
  const ratio = canvas.width / (canvas.clientWidth || canvas.width);
  const [ground, ink, muted] = COLOURS[shownTheme()];
  const picture = document.createElement("canvas");
  const context = picture.getContext("2d");
  const width = canvas.width / ratio;
  const places = legendPlaces(context, series, width);
  const rows = 1 + Math.max(0, ...places.map(({ row }) => row));
  const height = HEAD + canvas.height / ratio + 8 + rows * LINE;
  picture.width = Math.round((width + 2 * MARGIN) * ratio);
  picture.height = Math.round((height + 2 * MARGIN) * ratio);
  context.scale(ratio, ratio);
  context.fillStyle = ground;
  context.fillRect(0, 0, picture.width, picture.height);
  context.translate(MARGIN, MARGIN);
  context.textBaseline = "top";
  write(context, title, { font: `600 15px ${FONT}`, colour: ink, x: 0, y: 2 });
  const after = context.measureText(title).width + 12;
  if (note) write(context, note, { font: `12.5px ${FONT}`, colour: muted, x: after, y: 4 });
  context.drawImage(canvas, 0, HEAD, width, canvas.height / ratio);
  for (const { label, colour, x, row } of places) {
    const y = HEAD + canvas.height / ratio + 8 + row * LINE;
    context.fillStyle = colour;
    context.fillRect(x, y + 6, 18, 3);
    write(context, label, { font: `12.5px ${FONT}`, colour: muted, x: x + 24, y });
  }
  picture.toBlob((blob) => save(blob, `${name}.png`));
}

/** Saves the numbers of a chart as name.csv: a row for each round, a column for each series. */
export function saveCsv(name, xTitle, series, data) {
  const rows = data.rounds.map((round, i) => [round, ...data.columns.map((column) => column[i] ?? "")]);
  const lines = [[xTitle, ...series.map(({ label }) => label)], ...rows].map((row) => row.map(quoted).join(","));
  save(new Blob([`${lines.join("\n")}\n`], { type: "text/csv" }), `${name}.csv`);
}

/** Quotes what would not be one cell otherwise; a text that a spreadsheet would compute is kept a text. */
function quoted(value) {
  const text = typeof value === "number" ? String(value) : String(value).replace(/^[=+@-]/, "'$&");
  return /[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function legendPlaces(context, series, width) {
  let [x, row] = [0, 0];
  context.font = `12.5px ${FONT}`;
  return series.map(({ label, colour }) => {
    const room = context.measureText(label).width + 42;
    if (x > 0 && x + room > width) [x, row] = [0, row + 1];
    const place = { label, colour, x, row };
    x += room;
    return place;
  });
}

function write(context, text, { font, colour, x, y }) {
  context.font = font;
  context.fillStyle = colour;
  context.fillText(text, x, y);
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
