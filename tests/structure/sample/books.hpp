// Faults that structure.py must report, and code that it must not report.
#pragma once

#include <atomic>

namespace sample {

void from_a_header();

struct Record {
    int value = 0;
};

class Books {
public:
    void count() { ++count_; }  // a member of its own class
    int open = 0;
    Record record;
    std::atomic<int> shown{0};
    virtual void virtually();

private:
    friend class Reader;
    int count_ = 0;
};

template <class T>
class Shelf {
public:
    void count() { ++count_; }
    T first{};
    T all[2]{};

private:
    int count_ = 0;
};

class Reader {
public:
    void read(Books& books);
    void read(Shelf<int>& shelf);
    void fill(Record& record) { record.value = 1; }  // plain data is its holder's
    inline void through_a_header() { from_a_header(); }

private:
    Record kept_;
    void keep() { kept_.value = 1; }  // its own
};

}  // namespace sample
