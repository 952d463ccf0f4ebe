// Text in existing elements, so that nothing flickers. Values from events (a uid, a dimension's value, a reason) become
// text nodes and attributes' values, never markup.

export const $ = (id) => document.getElementById(id);

/** Sets text only if it changed: the browser repaints nothing else, and a selection is kept. */
export function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Sets an attribute only if it changed; null removes it. */
export function attribute(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

export function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

export function button(className, text, onClick) {
  const element = make("button", className, text);
  element.type = "button";
  if (onClick) element.addEventListener("click", onClick);
  return element;
}

/** Runs an action for a click that opens no new tab or window. */
export function onPlainClick(element, action) {
  element.addEventListener("click", (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    action(event);
  });
}

/** Gives a list one row per item: rows keep their position, and are added or removed at the end. */
export function rows(list, items, build, fill) {
  while (list.children.length > items.length) list.lastElementChild.remove();
  while (list.children.length < items.length) list.append(build());
  items.forEach((item, index) => fill(list.children[index], item, index));
}

/** Fills a list of terms with [term, text]. */
export function pairs(list, items) {
  rows(list, items, () => make("div", "", make("dt", ""), make("dd", "")), ({ children: [name, value] }, [term, text]) => {
    put(name, term);
    put(value, text);
  });
}
