#include "books.hpp"

namespace sample {
namespace {

class Local {
public:
    void change() { ++value; }
    int value = 0;
};

}  // namespace

void two();
void three();

void one() {
    Local local;
    local.value = 1;  // no other file knows the class
    local.change();
    two();
}

void Reader::read(Books& books) {
    books.open = 1;
    ++books.open;
    books.record.value = 1;
    books.shown.store(1);
    books.virtually();  // a virtual call does not count
}

void Reader::read(Shelf<int>& shelf) {
    shelf.first = 1;
    shelf.all[1] = 1;
}

void from_a_header() {
    three();
}

}  // namespace sample
