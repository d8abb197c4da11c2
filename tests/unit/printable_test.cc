// Tests how the log prints names that other processes choose, and lines that other processes cause.
#include "base/printable.hpp"

#include <sys/prctl.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <string>

#include <gtest/gtest.h>

#include "attach/credentials.hpp"
#include "base/line_budget.hpp"

namespace pollcore {
namespace {

using namespace std::chrono_literals;

TEST(Printable, leaves_an_ordinary_name_as_it_is_in_quotes) {
    EXPECT_EQ(printable("gateway-2"), R"("gateway-2")");
    EXPECT_EQ(printable(""), R"("")");
    EXPECT_EQ(printable("192.0.2.1:7471"), R"("192.0.2.1:7471")");
}

TEST(Printable, keeps_a_name_from_ending_its_field) {
    EXPECT_EQ(printable(R"(a), uid 0)"), R"("a), uid 0")");
    EXPECT_EQ(printable(R"(a", uid 0, as "b)"), R"("a\", uid 0, as \"b")");
    EXPECT_EQ(printable(R"(a\)"), R"("a\\")") << "the backslash does not take the quote with it";
}

TEST(Printable, carries_no_control_bytes_and_nothing_but_ascii) {
    EXPECT_EQ(printable("a\n\x1b[31m\x7f"), R"("a\x0a\x1b[31m\x7f")");
    EXPECT_EQ(printable(std::string("a\0b", 3)), R"("a\x00b")");
    EXPECT_EQ(printable("\xe2\x80\xae"), R"("\xe2\x80\xae")") << "right to left";
}

TEST(Printable, tells_any_two_names_apart) {
    EXPECT_NE(printable("a\n"), printable(R"(a\x0a)"));
    EXPECT_NE(printable(R"(")"), printable(R"(\")"));
}

// Gives this process another name for as long as the object lives.
class ProcessName {
public:
    explicit ProcessName(const char* name) {
        ::prctl(PR_GET_NAME, before_);
        ::prctl(PR_SET_NAME, name);
    }
    ~ProcessName() { ::prctl(PR_SET_NAME, before_); }

private:
    char before_[16] = {};
};

std::string described_as(const char* name) {
    const ProcessName named(name);
    Peer peer;
    peer.pid = ::getpid();
    peer.uid = 1001;
    return peer.describe();
}

TEST(Peer, cannot_pass_for_another_user_by_its_name) {
    const std::string pid = "pid " + std::to_string(::getpid());
    EXPECT_EQ(described_as("gateway"), pid + R"( "gateway", uid 1001)");
    EXPECT_EQ(described_as("a), uid 0"), pid + R"( "a), uid 0", uid 1001)");
    EXPECT_EQ(described_as("a\", uid 0"), pid + R"( "a\", uid 0", uid 1001)");
    EXPECT_EQ(described_as("a\nb\n"), pid + R"( "a\x0ab\x0a", uid 1001)");
}

TEST(Peer, that_has_ended_has_no_name) {
    Peer peer;
    peer.pid = -1;
    peer.uid = 1001;
    EXPECT_EQ(peer.describe(), "pid -1, uid 1001");
}

TEST(LineBudget, gives_so_many_a_second_and_tells_the_next_what_was_left_out) {
    LineBudget budget(2);
    const LineBudget::Clock::time_point now{10s};
    EXPECT_EQ(budget.take(now), 0u);
    EXPECT_EQ(budget.take(now + 1ms), 0u);
    EXPECT_EQ(budget.take(now + 2ms), std::nullopt);
    EXPECT_EQ(budget.take(now + 999ms), std::nullopt);
    EXPECT_EQ(budget.take(now + 1s), 2u);
    EXPECT_EQ(budget.take(now + 1s), 0u);
    EXPECT_EQ(budget.take(now + 1s), std::nullopt);
    EXPECT_EQ(and_others(0), "");
    EXPECT_EQ(and_others(2), " (2 lines like this were left out before)");
}

}  // namespace
}  // namespace pollcore
