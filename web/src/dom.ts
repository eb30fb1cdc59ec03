/** Small helpers for the document. */

export function element<Name extends keyof HTMLElementTagNameMap>(
  name: Name, className = "", text = "", attributes: Record<string, string> = {},
): HTMLElementTagNameMap[Name] {
  const made = document.createElement(name);
  made.className = className;
  made.textContent = text;
  for (const [attribute, value] of Object.entries(attributes)) made.setAttribute(attribute, value);
  return made;
}

export function byId<Kind extends HTMLElement>(id: string): Kind {
  const found = document.getElementById(id);
  if (!found) throw new Error(`the page has no #${id}`);
  return found as Kind;
}

/** Sets a text only where it differs: the page is drawn many times a second. */
export function setText(target: HTMLElement, text: string): void {
  if (target.textContent !== text) target.textContent = text;
}
