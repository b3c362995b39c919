// Event handlers of controls that pass on the plain value.

/** What was typed or chosen. @param {(value: string) => void} tell */
export function typed(tell) {
  return (/** @type {{currentTarget: {value: string}}} */ event) => tell(event.currentTarget.value);
}

/** Whether it is ticked. @param {(on: boolean) => void} tell */
export function ticked(tell) {
  return (/** @type {{currentTarget: {checked: boolean}}} */ event) => tell(event.currentTarget.checked);
}

/** For forms that work as one types: there is nothing to send. @param {Event} event */
export function unsent(event) {
  event.preventDefault();
}

/** One of several choices. @param {(change: any) => void} set @param {string} key */
export function setting(set, key) {
  return (/** @type {unknown} */ value) => set({ [key]: value });
}
