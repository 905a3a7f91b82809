/** Reads the settings of a run: the TOML that Esper writes, a comment above each setting. */

/** Gives [{ section, key, value, comment }] in the order of the file; values stay as they are written. */
export function readSettings(text) {
  const settings = [];
  let section = "";
  let comment = [];
  for (const line of (text ?? "").split("\n")) {
    const trimmed = line.trim();
    const heading = trimmed.match(/^\[([^\]]+)\]$/);
    const setting = trimmed.match(/^([A-Za-z0-9_."-]+)\s*=\s*(.*)$/);
    if (trimmed.startsWith("#")) {
      comment.push(trimmed.replace(/^#\s?/, ""));
    } else if (heading) {
      [section, comment] = [heading[1], []];
    } else if (setting) {
      settings.push({ section, key: setting[1], value: setting[2], comment: comment.join(" ") });
      comment = [];
    } else if (trimmed === "") {
      comment = [];
    } else if (settings.length) {
      settings.at(-1).value += ` ${trimmed}`;
    }
  }
  return settings;
}

/** Gives the whole name of a setting: ppo.learning_rate. */
export function settingName({ section, key }) {
  return section ? `${section}.${key}` : key;
}

/** Gives the settings that are not the same in all texts: [{ name, comment, values }]. */
export function differingSettings(texts) {
  const all = texts.map((text) => new Map(readSettings(text).map((one) => [settingName(one), one])));
  const names = [...new Set(all.flatMap((one) => [...one.keys()]))];
  return names
    .map((name) => ({
      name,
      comment: all.map((one) => one.get(name)?.comment).find(Boolean) ?? "",
      values: all.map((one) => one.get(name)?.value ?? null),
    }))
    .filter(({ values }) => new Set(values).size > 1);
}
