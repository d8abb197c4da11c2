#include "memory_keys.hpp"

#include <cerrno>
#include <cstring>

#include <gtest/gtest.h>

namespace mlx5_model {
namespace {

constexpr std::uint32_t kPd = 3;
constexpr std::uint32_t kOtherPd = 4;
constexpr std::uint32_t kRequester = 0x101;
constexpr std::uint32_t kOtherQp = 0x102;
constexpr std::uint64_t kLength = 256;
constexpr int kAll = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
                     IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND;

class MemoryKeysTest : public testing::Test {
protected:
    std::uint32_t region(int access = kAll) {
        const auto key = keys.add_region(file, kPd, start(), kLength, start(), access);
        EXPECT_TRUE(key);
        return key.value_or(0);
    }
    std::uint32_t window(int type) {
        const auto key = keys.add_window(file, kPd, type);
        EXPECT_TRUE(key);
        return key.value_or(0);
    }
    [[nodiscard]] std::uint64_t start() const { return reinterpret_cast<std::uint64_t>(memory); }
    /// Binds the window to bytes 64 to 127 of the region.
    [[nodiscard]] BindRequest bind_of(std::uint32_t window, std::uint32_t region) const {
        BindRequest bind;
        bind.key = window;
        bind.new_key = window + 1;
        bind.qpn = MemoryKeys::kAnyQp;
        bind.access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        bind.start = bind.region_address = start() + 64;
        bind.length = 64;
        bind.region_key = region;
        return bind;
    }
    [[nodiscard]] bool opens(std::uint32_t key, std::uint64_t from, std::uint64_t bytes,
                             std::uint32_t qp = kRequester) const {
        return keys.remote(key, from, bytes, kPd, IBV_ACCESS_REMOTE_READ, qp) != nullptr;
    }
    static std::uint32_t next_variant(std::uint32_t key) { return (key & ~0xffu) | ((key + 1) & 0xff); }

    std::uint8_t memory[kLength] = {};
    const UverbsFile* file = nullptr;
    MemoryKeys keys;
};

TEST_F(MemoryKeysTest, ARegionOpensItsBytesAndNoOthers) {
    const std::uint32_t key = region();
    EXPECT_EQ(keys.local(key, start(), kLength, kPd, 0), memory);
    EXPECT_EQ(keys.local(key, start() + 5, 7, kPd, IBV_ACCESS_LOCAL_WRITE), memory + 5);
    EXPECT_EQ(keys.local(key, start(), kLength + 1, kPd, 0), nullptr);
    EXPECT_EQ(keys.local(key, start() - 1, 1, kPd, 0), nullptr);
    EXPECT_EQ(keys.local(key, start() + kLength, 1, kPd, 0), nullptr);
    EXPECT_EQ(keys.local(key, start() + 1, ~0ull, kPd, 0), nullptr) << "the sum wraps";
    EXPECT_EQ(keys.remote(key, start() + 5, 7, kPd, IBV_ACCESS_REMOTE_WRITE, kRequester), memory + 5);
}

TEST_F(MemoryKeysTest, AKeyIsOfItsPdAndPermitsWhatItWasGiven) {
    const std::uint32_t key = region(IBV_ACCESS_REMOTE_READ);
    EXPECT_EQ(keys.local(key, start(), 1, kOtherPd, 0), nullptr);
    EXPECT_EQ(keys.remote(key, start(), 1, kOtherPd, IBV_ACCESS_REMOTE_READ, kRequester), nullptr);
    EXPECT_EQ(keys.local(key, start(), 1, kPd, IBV_ACCESS_LOCAL_WRITE), nullptr);
    EXPECT_NE(keys.remote(key, start(), 1, kPd, IBV_ACCESS_REMOTE_READ, kRequester), nullptr);
    EXPECT_EQ(keys.remote(key, start(), 1, kPd, IBV_ACCESS_REMOTE_WRITE, kRequester), nullptr);
    EXPECT_EQ(keys.remote(key, start(), 1, kPd, IBV_ACCESS_REMOTE_ATOMIC, kRequester), nullptr);
}

TEST_F(MemoryKeysTest, AnAddressOfItsOwnIsTranslated) {
    const auto key = keys.add_region(file, kPd, start(), kLength, 0x1000, kAll);
    ASSERT_TRUE(key);
    EXPECT_EQ(keys.local(*key, 0x1000 + 9, 1, kPd, 0), memory + 9);
    EXPECT_EQ(keys.local(*key, start(), 1, kPd, 0), nullptr);
    EXPECT_EQ(keys.local(*key, 0xfff, 1, kPd, 0), nullptr);
}

TEST_F(MemoryKeysTest, AStaleKeyOpensNothing) {
    const std::uint32_t key = region();
    EXPECT_EQ(keys.local(key + 1, start(), 1, kPd, 0), nullptr) << "the variant counts";
    EXPECT_EQ(keys.remove(file, key >> 8, false), 0);
    EXPECT_EQ(keys.local(key, start(), 1, kPd, 0), nullptr);
    EXPECT_EQ(keys.remove(file, key >> 8, false), EINVAL);
    for (int i = 0; i < 100; ++i) {
        const std::uint32_t next = region();
        EXPECT_NE(next >> 8, key >> 8) << "the index is not used again soon";
        EXPECT_EQ(keys.remove(file, next >> 8, false), 0);
    }
}

TEST_F(MemoryKeysTest, EachIsRemovedAsWhatItIsByWhoMadeIt) {
    const auto* const other = reinterpret_cast<const UverbsFile*>(memory);
    const std::uint32_t of_region = region();
    const std::uint32_t of_window = window(2);
    EXPECT_EQ(keys.remove(file, of_region >> 8, true), EINVAL);
    EXPECT_EQ(keys.remove(file, of_window >> 8, false), EINVAL);
    EXPECT_EQ(keys.remove(other, of_region >> 8, false), EINVAL);
    EXPECT_TRUE(keys.uses(kPd));
    keys.remove_all(other);
    EXPECT_TRUE(keys.uses(kPd));
    keys.remove_all(file);
    EXPECT_FALSE(keys.uses(kPd));
}

TEST_F(MemoryKeysTest, ABoundWindowOpensItsPart) {
    const std::uint32_t of_region = region();
    const std::uint32_t key = window(1);
    EXPECT_FALSE(opens(key, start() + 64, 1)) << "not bound";
    const BindRequest bind = bind_of(key, of_region);
    ASSERT_TRUE(keys.bind(bind, kPd, kRequester));
    const std::uint32_t bound = next_variant(key);
    EXPECT_FALSE(opens(key, start() + 64, 1)) << "the key is another one now";
    EXPECT_TRUE(opens(bound, start() + 64, 64));
    EXPECT_TRUE(opens(bound, start() + 64, 64, kOtherQp));
    EXPECT_FALSE(opens(bound, start() + 63, 1));
    EXPECT_FALSE(opens(bound, start() + 64, 65));
    EXPECT_EQ(keys.remote(bound, start() + 64, 1, kPd, IBV_ACCESS_REMOTE_ATOMIC, kRequester), nullptr);
    EXPECT_EQ(keys.local(bound, start() + 64, 1, kPd, 0), nullptr) << "a window is for remote use";
}

TEST_F(MemoryKeysTest, AWindowMayCountFromZero) {
    const std::uint32_t key = window(1);
    BindRequest bind = bind_of(key, region());
    bind.start = 0;
    ASSERT_TRUE(keys.bind(bind, kPd, kRequester));
    EXPECT_EQ(keys.remote(next_variant(key), 3, 4, kPd, IBV_ACCESS_REMOTE_READ, kRequester), memory + 64 + 3);
}

TEST_F(MemoryKeysTest, AWindowOfOneQueuePairIsForThatAlone) {
    const std::uint32_t key = window(2);
    BindRequest bind = bind_of(key, region());
    bind.qpn = kRequester;
    ASSERT_TRUE(keys.bind(bind, kPd, kRequester));
    EXPECT_TRUE(opens(next_variant(key), start() + 64, 1, kRequester));
    EXPECT_FALSE(opens(next_variant(key), start() + 64, 1, kOtherQp));
}

TEST_F(MemoryKeysTest, ABindThatIsNotPermittedChangesNothing) {
    const std::uint32_t of_region = region();
    const std::uint32_t key = window(2);
    const auto refused = [&](auto&& change) {
        BindRequest bind = bind_of(key, of_region);
        change(bind);
        return !keys.bind(bind, kPd, kRequester);
    };
    EXPECT_TRUE(refused([](BindRequest& bind) { bind.key += 1; }));
    EXPECT_TRUE(refused([](BindRequest& bind) { bind.key = 0x99900; }));
    EXPECT_TRUE(refused([&](BindRequest& bind) { bind.key = of_region; })) << "it is no window";
    EXPECT_TRUE(refused([](BindRequest& bind) { bind.region_key += 1; }));
    EXPECT_TRUE(refused([&](BindRequest& bind) { bind.region_key = key; })) << "it is no region";
    EXPECT_TRUE(refused([](BindRequest& bind) { bind.length = kLength; })) << "longer than the region";
    EXPECT_FALSE(keys.bind(bind_of(key, of_region), kOtherPd, kRequester));
    EXPECT_EQ(keys.remove(file, of_region >> 8, false), 0) << "nothing is bound to it";
}

TEST_F(MemoryKeysTest, ARegionMustPermitTheBind) {
    const std::uint32_t key = window(1);
    EXPECT_FALSE(keys.bind(bind_of(key, region(kAll & ~IBV_ACCESS_MW_BIND)), kPd, kRequester));
    EXPECT_FALSE(keys.bind(bind_of(key, region(IBV_ACCESS_MW_BIND | IBV_ACCESS_REMOTE_READ)), kPd, kRequester))
        << "who writes from afar writes here";
    BindRequest reading = bind_of(key, region(IBV_ACCESS_MW_BIND));
    reading.access = IBV_ACCESS_REMOTE_READ;
    EXPECT_TRUE(keys.bind(reading, kPd, kRequester));
}

TEST_F(MemoryKeysTest, ARegionIsBusyWhileAWindowIsBoundToIt) {
    const std::uint32_t of_region = region();
    const std::uint32_t other_region = region();
    const std::uint32_t first = window(1);
    const std::uint32_t second = window(2);
    ASSERT_TRUE(keys.bind(bind_of(first, of_region), kPd, kRequester));
    ASSERT_TRUE(keys.bind(bind_of(second, of_region), kPd, kRequester));
    EXPECT_EQ(keys.remove(file, of_region >> 8, false), EBUSY);
    EXPECT_EQ(keys.remove(file, second >> 8, true), 0);
    EXPECT_EQ(keys.remove(file, of_region >> 8, false), EBUSY);
    // A bound window of type 1 may be bound again.
    ASSERT_TRUE(keys.bind(bind_of(next_variant(first), other_region), kPd, kRequester));
    EXPECT_EQ(keys.remove(file, of_region >> 8, false), 0);
    EXPECT_EQ(keys.remove(file, other_region >> 8, false), EBUSY);
}

TEST_F(MemoryKeysTest, AWindowOfTypeTwoIsBoundWhenItIsFree) {
    const std::uint32_t of_region = region();
    const std::uint32_t key = window(2);
    BindRequest bind = bind_of(key, of_region);
    bind.only_if_free = true;
    ASSERT_TRUE(keys.bind(bind, kPd, kRequester));
    bind.key = next_variant(key);
    EXPECT_FALSE(keys.bind(bind, kPd, kRequester));
}

TEST_F(MemoryKeysTest, AnUnboundWindowOpensNothing) {
    const std::uint32_t of_region = region();
    const std::uint32_t key = window(1);
    ASSERT_TRUE(keys.bind(bind_of(key, of_region), kPd, kRequester));
    BindRequest unbind;
    unbind.key = next_variant(key);
    unbind.unbind = true;
    unbind.new_key = key + 2;
    ASSERT_TRUE(keys.bind(unbind, kPd, kRequester));
    EXPECT_FALSE(opens(next_variant(key), start() + 64, 1));
    EXPECT_FALSE(opens(next_variant(next_variant(key)), start() + 64, 1));
    EXPECT_EQ(keys.remove(file, of_region >> 8, false), 0);
}

TEST_F(MemoryKeysTest, ALocalInvalidationIsTheBindersAlone) {
    const std::uint32_t key = window(2);
    BindRequest bind = bind_of(key, region());
    bind.qpn = kRequester;
    ASSERT_TRUE(keys.bind(bind, kPd, kRequester));
    BindRequest invalidate;
    invalidate.key = next_variant(key);
    invalidate.unbind = invalidate.only_of_qp = true;
    EXPECT_FALSE(keys.bind(invalidate, kPd, kOtherQp));
    EXPECT_FALSE(keys.bind(invalidate, kOtherPd, kRequester));
    EXPECT_TRUE(opens(next_variant(key), start() + 64, 1));
    EXPECT_TRUE(keys.bind(invalidate, kPd, kRequester));
    EXPECT_FALSE(opens(next_variant(key), start() + 64, 1));
    EXPECT_FALSE(keys.bind(invalidate, kPd, kRequester)) << "it is free already";
}

TEST_F(MemoryKeysTest, ASenderInvalidatesABoundWindowOfTypeTwo) {
    const std::uint32_t of_region = region();
    const std::uint32_t key = window(2);
    EXPECT_FALSE(keys.invalidate(key, kPd, kRequester)) << "it is not bound";
    BindRequest bind = bind_of(key, of_region);
    bind.qpn = kRequester;
    ASSERT_TRUE(keys.bind(bind, kPd, kRequester));
    const std::uint32_t bound = next_variant(key);
    EXPECT_FALSE(keys.invalidate(key, kPd, kRequester)) << "a stale key";
    EXPECT_FALSE(keys.invalidate(bound, kOtherPd, kRequester));
    EXPECT_FALSE(keys.invalidate(bound, kPd, kOtherQp));
    EXPECT_FALSE(keys.invalidate(of_region, kPd, kRequester)) << "a region that a program has registered";
    EXPECT_TRUE(keys.invalidate(bound, kPd, kRequester));
    EXPECT_FALSE(opens(bound, start() + 64, 1));
    EXPECT_EQ(keys.remove(file, of_region >> 8, false), 0);

    const std::uint32_t of_type_one = window(1);
    ASSERT_TRUE(keys.bind(bind_of(of_type_one, region()), kPd, kRequester));
    EXPECT_FALSE(keys.invalidate(next_variant(of_type_one), kPd, kRequester));
}

TEST_F(MemoryKeysTest, ThereIsAnEndOfKeys) {
    std::uint32_t count = 0;
    while (keys.add_region(file, kPd, start(), 1, start(), 0)) {
        ++count;
    }
    EXPECT_EQ(count, 1u << 16);
    EXPECT_FALSE(keys.add_window(file, kPd, 1));
    keys.remove_all(file);
    EXPECT_TRUE(keys.add_window(file, kPd, 1));
}

}  // namespace
}  // namespace mlx5_model
