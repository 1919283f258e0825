// Small helpers to build the page once and then change only what differs. Nothing here ever parses HTML: whatever
// comes from the server ends up in a text node or an attribute value.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element. `attributes.text` becomes its text; everything else is set as an attribute. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** The same for SVG. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, { text, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) setAttribute(node, name, value);
  if (text !== undefined) node.textContent = text;
  node.append(...children);
  return node;
}

/** Set the text of a node that has no element children, only when it differs. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Set, or with null or false remove, an attribute, only when it differs. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) {
    node.setAttribute(name, String(value));
  }
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

/**
 * Make the children of `parent` exactly `nodes`, in order, moving as few as possible and keeping the keyboard focus
 * (a browser drops it when it moves the focused element).
 */
export function setChildren(parent, nodes) {
  const focused = parent.contains(document.activeElement) ? document.activeElement : null;
  const wanted = new Set(nodes);
  for (const child of [...parent.children]) if (!wanted.has(child)) child.remove();
  let next = parent.firstElementChild;
  for (const node of nodes) {
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
  }
  if (focused && focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
}

/** Components by key: makes the missing ones, forgets those that are gone, returns them in the order of `keys`. */
export class Keyed {
  constructor(make) {
    this.make = make;
    this.map = new Map();
  }

  take(keys) {
    const wanted = new Set(keys);
    for (const key of this.map.keys()) if (!wanted.has(key)) this.map.delete(key);
    return keys.map((key) => {
      if (!this.map.has(key)) this.map.set(key, this.make(key));
      return this.map.get(key);
    });
  }
}

/** Make the children of a list the given texts, in place. */
export function setTexts(parent, texts, tag = "li", className = "") {
  while (parent.children.length > texts.length) parent.lastElementChild.remove();
  texts.forEach((text, i) => {
    if (i >= parent.children.length) parent.append(h(tag, className ? { class: className } : {}));
    setText(parent.children[i], text);
  });
}
