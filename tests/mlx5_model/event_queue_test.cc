#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

#include "hca_event_queue.hpp"

namespace mlx5_model {
namespace {

class EventQueueTest : public testing::Test {
protected:
    EventQueueTest() { attach(queue->descriptor(), queue); }
    ~EventQueueTest() override {
        if (!closed) {
            close();
        }
    }
    void close() {
        ::close(queue->descriptor());
        closed = true;
    }
    void do_not_wait() const { ASSERT_EQ(::fcntl(queue->descriptor(), F_SETFL, O_NONBLOCK), 0); }
    [[nodiscard]] bool readable() const {
        pollfd one{queue->descriptor(), POLLIN, 0};
        return ::poll(&one, 1, 0) == 1;
    }
    // Reads the descriptor, as the libraries do. Returns 0 if there is no record.
    [[nodiscard]] int next() const {
        int value = 0;
        return ::read(queue->descriptor(), &value, sizeof value) == sizeof value ? value : 0;
    }

    std::shared_ptr<EventQueue> queue = std::make_shared<EventQueue>();
    bool closed = false;
};

TEST_F(EventQueueTest, HandsOutItsRecordsInOrderOneARead) {
    EXPECT_FALSE(readable());
    queue->push(1);
    queue->push(2);
    EXPECT_TRUE(readable());
    EXPECT_EQ(next(), 1);
    EXPECT_TRUE(readable());
    EXPECT_EQ(next(), 2);
    EXPECT_FALSE(readable());
}

TEST_F(EventQueueTest, CutsARecordToTheRoomThereIs) {
    queue->push(std::uint64_t{0x1122334455667788});
    queue->push(7);
    std::uint8_t small[4] = {};
    EXPECT_EQ(::read(queue->descriptor(), small, 2), 2);
    EXPECT_EQ(small[0], 0x88);
    EXPECT_EQ(small[2], 0);
    EXPECT_EQ(next(), 7);
}

TEST_F(EventQueueTest, AnEmptyOneSaysSoWhereNobodyMayWait) {
    do_not_wait();
    EXPECT_EQ(next(), 0);
    EXPECT_EQ(errno, EAGAIN);
}

TEST_F(EventQueueTest, AReaderWaitsForTheNext) {
    int got = 0;
    std::thread reader([&] { got = next(); });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    queue->push(3);
    reader.join();
    EXPECT_EQ(got, 3);
}

TEST_F(EventQueueTest, CountsWhatWasReadOfAnObject) {
    const Reported one = none_reported();
    const Reported other = none_reported();
    queue->push(1, one);
    queue->push(2, other);
    queue->push(3, one);
    EXPECT_EQ(one->load(), 0u);
    EXPECT_EQ(next(), 1);
    EXPECT_EQ(next(), 2);
    EXPECT_EQ(one->load(), 1u);
    EXPECT_EQ(other->load(), 1u);
}

TEST_F(EventQueueTest, ForgetsWhatNobodyHasReadOfAnObject) {
    const Reported one = none_reported();
    const Reported other = none_reported();
    queue->push(1, one);
    queue->push(2, other);
    queue->push(3, one);
    EXPECT_EQ(next(), 1);
    EXPECT_EQ(queue->forget(one), 1u);
    EXPECT_EQ(queue->forget(one), 0u);
    EXPECT_EQ(one->load(), 1u);
    EXPECT_EQ(next(), 2);
    EXPECT_FALSE(readable());
}

TEST_F(EventQueueTest, AfterItsEndItSaysEioWhenItIsEmpty) {
    queue->push(1);
    queue->end();
    queue->end();
    queue->push(2);
    EXPECT_EQ(next(), 1);
    for (int i = 0; i < 3; ++i) {
        EXPECT_TRUE(readable());
        EXPECT_EQ(next(), 0);
        EXPECT_EQ(errno, EIO);
    }
}

TEST_F(EventQueueTest, TheEndWakesAReader) {
    int error = 0;
    std::thread reader([&] {
        EXPECT_EQ(next(), 0);
        error = errno;
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    queue->end();
    reader.join();
    EXPECT_EQ(error, EIO);
}

TEST_F(EventQueueTest, AClosedOneTouchesItsNumberNoMore) {
    const int number = queue->descriptor();
    const Reported reported = none_reported();
    queue->push(1, reported);
    close();
    int pair[2];
    ASSERT_EQ(::pipe2(pair, O_NONBLOCK), 0);
    // Another file gets the descriptor's number: the writing end of a pipe. The test reads the pipe below, to notice
    // any write to that number.
    ASSERT_TRUE(pair[0] == number || ::dup2(pair[1], number) == number);
    queue->push(2, reported);
    EXPECT_EQ(queue->forget(reported), 0u);
    queue->end();
    char byte;
    EXPECT_LT(::read(pair[0], &byte, 1), 0);
    if (pair[0] != number) {
        ::close(number);
    }
    ::close(pair[0]);
    ::close(pair[1]);
}

}  // namespace
}  // namespace mlx5_model
