// Tables as text: CSV (RFC 4180), also separated by tabs or semicolons, or a plain line for each row.

/** {columns, rows}: the first row names the columns; a .txt file has one column, `text`. */
export function parseTable(text, name) {
  const plain = text.replace(/^\uFEFF/, "");
  if (/\.txt$/i.test(name)) return nonEmpty({ columns: ["text"], rows: plain.split(/\r?\n/).filter((line) => line.trim()).map((line) => [line]) });
  const [columns = [], ...rows] = records(plain, separator(plain.split("\n", 1)[0]));
  return nonEmpty({ columns, rows });
}

/** The table as CSV. */
export function writeTable(columns, rows) {
  const cell = (value) => (/[",\r\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  return [columns, ...rows].map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}

function nonEmpty(table) {
  if (!table.rows.length) throw new RangeError("The file has no rows below its header. Choose a CSV file with a header and a row for each text.");
  return table;
}

function separator(header) {
  return ["\t", ",", ";"].find((character) => header.includes(character)) ?? ",";
}

/** The rows of a table, each a list of cells; empty lines are left out. */
function records(text, separator) {
  const rows = [];
  let [row, cell, quoted] = [[], "", false];
  const endRow = () => {
    row.push(cell);
    if (row.length > 1 || cell.trim()) rows.push(row);
    [row, cell] = [[], ""];
  };
  for (let n = 0; n < text.length; n++) {
    const character = text[n];
    if (quoted && character === '"' && text[n + 1] === '"') { cell += '"'; n++; }
    else if (quoted) { if (character === '"') quoted = false; else cell += character; }
    else if (character === '"' && cell === "" && separator !== "\t") quoted = true;
    else if (character === separator) { row.push(cell); cell = ""; }
    else if (character === "\n") endRow();
    else if (character !== "\r") cell += character;
  }
  if (quoted) throw new RangeError(`A quote in row ${rows.length + 1} is not closed. Close it, or write a quote inside a cell as two.`);
  if (cell || row.length) endRow();
  return rows;
}
