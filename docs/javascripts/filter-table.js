// Above each table in a <div class="filtered">: a field that keeps the rows with its words, and a choice for each column
// with few values.
const MOST_VALUES = 12;

function filterTable(table) {
  const rows = [...table.tBodies[0].rows];
  const bar = document.createElement("div");
  const words = document.createElement("input");
  words.type = "search";
  words.placeholder = "filter: words of a question, an arm, a verdict";
  words.size = 44;
  const choices = [...table.tHead.rows[0].cells].map((cell, column) => {
    const values = [...new Set(rows.map((row) => row.cells[column].innerText.trim()))].sort();
    if (values.length < 2 || values.length > MOST_VALUES) return null;
    const choice = document.createElement("select");
    choice.append(new Option(`${cell.innerText.trim()}: all`, ""), ...values.map((value) => new Option(value, value)));
    return choice;
  });
  const update = () => {
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const row of rows) {
      const text = row.innerText.toLowerCase();
      const matches = choices.every((choice, k) => !choice || !choice.value || row.cells[k].innerText.trim() === choice.value);
      row.hidden = !(matches && wanted.every((word) => text.includes(word)));
    }
  };
  for (const part of [words, ...choices.filter(Boolean)]) {
    part.addEventListener("input", update);
    bar.append(part, " ");
  }
  table.before(bar);
}

document.querySelectorAll(".filtered table").forEach(filterTable);
