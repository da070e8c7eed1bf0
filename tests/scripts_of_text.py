"""A sentence in each of a dozen scripts, for whatever reads text."""

SCRIPTS = {
    "accents": "Žluťoučký kůň příliš úpěl ďábelské ódy",
    "cyrillic": "мама мыла раму вечером",
    "greek": "καλημέρα κόσμε τι κάνεις",
    "arabic": "ذهب الولد إلى المدرسة",
    "hebrew": "שלום עולם מה שלומך",
    "devanagari": "पानी ठंडा है और हवा तेज़",
    "sinhala": "ශ්‍රී ලංකාව ලස්සන රටකි",
    "thai": "ฉันไปตลาดกับเพื่อน",
    "chinese": "今天下雨，我们不去公园。",
    "japanese": "東京タワーへ行きました",
    "korean": "오늘은 비가 옵니다",
    "emoji": "😀🎉🚀 🌍🔥 👩‍💻💡",
    "dna": "ACGTTGCA" * 20,
}
