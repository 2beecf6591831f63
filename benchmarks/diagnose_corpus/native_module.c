/* A CPython extension with wrong reference counts and bounds, for benchmarks/diagnose.py. */
#include <Python.h>

static PyObject *drop_borrowed(PyObject *self, PyObject *list) {  /* gives up a reference that it does not own */
    Py_DECREF(PyList_GET_ITEM(list, 0));
    Py_RETURN_NONE;
}
static PyObject *give_borrowed(PyObject *self, PyObject *list) {  /* returns a reference that it does not own */
    return PyList_GET_ITEM(list, 0);
}
static PyObject *fill_bytes(PyObject *self, PyObject *bytes) {  /* writes past the end of a bytes object */
    memset(PyBytes_AS_STRING(bytes), 0x41, PyBytes_GET_SIZE(bytes) + 64);
    Py_RETURN_NONE;
}
static PyObject *set_beyond(PyObject *self, PyObject *list) {  /* sets items that the list does not have */
    for (int i = 0; i < 8; i++) PyList_SET_ITEM(list, PyList_GET_SIZE(list) + i, Py_None);
    Py_RETURN_NONE;
}
static PyMethodDef methods[] = {
    {"drop_borrowed", drop_borrowed, METH_O, ""}, {"give_borrowed", give_borrowed, METH_O, ""},
    {"fill_bytes", fill_bytes, METH_O, ""}, {"set_beyond", set_beyond, METH_O, ""}, {NULL, NULL, 0, NULL},
};
static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "native_module", "", -1, methods};
PyMODINIT_FUNC PyInit_native_module(void) { return PyModule_Create(&module); }
