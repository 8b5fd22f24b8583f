// Elements that are kept and only changed where their text changed: a screen reader, a selection and the keyboard's focus stay where they are.

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// The rows of a table's body, one for each item, in the items' order.
//   key(item)    identifies an item
//   cells(item)  the contents of the columns: text, or {text, title, class}; the first one is the row's header
//   fill         {column: function(cell, item)} for columns that hold more than text
export class Rows {
  #rows = new Map();

  constructor(table, { key, cells, numbers = [], fill = {} }) {
    Object.assign(this, { table, key, cells, numbers, fill });
    this.body = table.tBodies[0];
    this.labels = [...table.tHead.rows[0].cells].map((cell) => cell.textContent); // narrow pages show them beside the cells
    this.region = table.closest(".scroll");
    this.empty = document.getElementById(`${table.id}-empty`);
  }

  show(items) {
    const wanted = new Set(items.map(this.key));
    for (const [key, row] of this.#rows) {
      if (wanted.has(key)) continue;
      row.remove();
      this.#rows.delete(key);
    }
    let place = this.body.firstElementChild;
    for (const item of items) {
      const row = this.#row(this.key(item));
      if (row === place) place = row.nextElementSibling;
      else this.body.insertBefore(row, place);
      this.#update(row, item);
    }
    this.region.hidden = items.length === 0;
    this.empty.hidden = items.length > 0;
  }

  #row(key) {
    if (!this.#rows.has(key)) this.#rows.set(key, make("tr"));
    return this.#rows.get(key);
  }

  #update(row, item) {
    this.cells(item).forEach((value, i) => {
      const cell = row.children[i] ?? row.appendChild(i === 0 ? make("th", { scope: "row" }) : make("td", { "data-label": this.labels[i] }));
      const { text, title, class: look = "" } = typeof value === "object" ? value : { text: value };
      const classes = `${this.numbers.includes(i) ? "number " : ""}${look}`.trim();
      if (cell.className !== classes) cell.className = classes;
      if (title && cell.title !== title) cell.title = title;
      if (this.fill[i]) this.fill[i](cell, item);
      else setText(cell, text);
    });
  }
}
