// Above each table in a <div class="filtered">: a field that keeps the rows with its words, and a choice for each column
// whose cells are few short words: "llama", "w32, w64", or "holds: pre; costs: mix", of which the words are holds and costs.
const MOST_VALUES = 20;
const MOST_LETTERS = 24;

function readWords(cell) {
  const text = cell.innerText.trim();
  const parts = text.includes(":") ? text.split(";").map((part) => part.split(":")[0]) : text.split(",");
  return parts.map((part) => part.trim()).filter(Boolean);
}

function filterTable(table) {
  const rows = [...table.tBodies[0].rows];
  const bar = document.createElement("div");
  const words = document.createElement("input");
  words.type = "search";
  words.placeholder = "filter: words of a question, an arm, a verdict";
  words.size = 44;
  const choices = [...table.tHead.rows[0].cells].map((cell, column) => {
    const values = [...new Set(rows.flatMap((row) => readWords(row.cells[column])))].sort();
    const isLong = values.length > MOST_VALUES || values.some((value) => value.length > MOST_LETTERS);
    if (values.length < 2 || isLong || values.every((value) => !isNaN(value))) return null;
    const choice = document.createElement("select");
    choice.append(new Option(`${cell.innerText.trim()}: all`, ""), ...values.map((value) => new Option(value, value)));
    return choice;
  });
  const update = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.innerText.toLowerCase();
      const matches = choices.every((choice, k) => !choice || !choice.value || readWords(row.cells[k]).includes(choice.value));
      row.hidden = !(matches && wanted.every((word) => text.includes(word)));
    }
  };
  for (const part of [words, ...choices.filter(Boolean)]) {
    part.addEventListener("input", update);
    part.style.border = "1px solid";
    part.style.padding = "0.2em 0.4em";
    bar.append(part, " ");
  }
  table.before(bar);
}

document.querySelectorAll(".filtered table").forEach(filterTable);
