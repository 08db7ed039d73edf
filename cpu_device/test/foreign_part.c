/* Valid in C only: `new` is a name. */
int twice(int new) { return 2 * new; }
