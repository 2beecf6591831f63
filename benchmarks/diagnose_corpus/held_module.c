/* A CPython extension whose dictionary lookup returns a reference that it does not own. */
#include <Python.h>

static PyObject *lookup(PyObject *self, PyObject *const *arguments, Py_ssize_t count) {
    return PyDict_GetItem(arguments[0], arguments[1]);
}
static PyMethodDef methods[] = {{"lookup", (PyCFunction)(void *)lookup, METH_FASTCALL, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "held_module", "", -1, methods};
PyMODINIT_FUNC PyInit_held_module(void) { return PyModule_Create(&module); }
